// Texts made from the table of flags.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::launcher {

/// Text of --help for so many columns (40 or more; commands and the names of flags are not broken).
std::string help_text(size_t columns);

/// The manual page lockrun(1), in man's macros. `version`: for its footer.
std::string man_page(const std::string& version);

/// Completion script for `shell`: "bash", "zsh" or "tcsh".
std::string completion_script(const std::string& shell);

}  // namespace lockstep::launcher
