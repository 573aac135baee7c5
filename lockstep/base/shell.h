// Words of commands that a person is to type.
#pragma once

#include <string>

namespace lockstep {

/// `word` as one would type it in a shell: as it is if no character is special, otherwise quoted.
std::string shell_quoted(const std::string& word);

}  // namespace lockstep
