// From what the user typed to what is executed.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

struct Program {
  std::string path;               ///< for execve
  std::vector<std::string> argv;  ///< argv[0] as the user typed it
  bool is_python = false;         ///< run by Python, with unbuffered output
  size_t first_argument = 1;      ///< where in argv the program's own arguments begin
};

/// How the target is run.
struct TargetKind {
  bool module = false;     ///< it is a Python module
  bool no_python = false;  ///< it is executed itself even if it ends in .py
  bool run_path = false;   ///< it is given to Python's runpy.run_path; wins over no_python
};

/// What runs for `command`: a target ending in .py, a module or a path for runpy is given to
/// `python` (found in `search_path`), anything else is executed itself, looked up in `search_path` when it
/// has no '/'. Throws FileError naming what is missing or not executable and what to do.
Program resolve_program(const std::vector<std::string>& command, TargetKind kind, const std::string& python,
                        const std::string& search_path);

}  // namespace lockstep::launcher
