// Texts made from the table of flags.
#pragma once

#include <string>

namespace lockstep::launcher {

/// Text of --help, at most 80 columns wide.
std::string help_text();

/// The manual page lockrun(1), in man's macros. `version`: for its footer.
std::string man_page(const std::string& version);

/// Completion script for `shell`: "bash" or "zsh".
std::string completion_script(const std::string& shell);

}  // namespace lockstep::launcher
