// From what the user typed to what is executed.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

struct Program {
  std::string path;               ///< for execve
  std::vector<std::string> argv;  ///< argv[0] as the user typed it
  bool is_python = false;         ///< run by Python, with unbuffered output
};

/// What runs for `command`: a target ending in .py (unless `no_python`) or a `module` is given to
/// `python` (found in `search_path`), anything else is executed itself, looked up in `search_path` when it
/// has no '/'. Throws FileError naming what is missing or not executable and what to do.
Program resolve_program(const std::vector<std::string>& command, bool module, bool no_python,
                        const std::string& python, const std::string& search_path);

}  // namespace lockstep::launcher
