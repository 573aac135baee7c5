// Words of commands that a person is to type.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// `word` as one would type it in a shell: as it is if no character is special, otherwise quoted.
std::string shell_quoted(const std::string& word);

/// A word in an error: nobody would see an empty one.
inline std::string_view quoted_if_empty(std::string_view word) { return word.empty() ? "\"\"" : word; }

}  // namespace lockstep
