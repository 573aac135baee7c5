// Which libraries a program asks the loader for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::start {

struct Needs {
  std::vector<std::string> libraries;           ///< file names, DT_NEEDED
  std::vector<std::filesystem::path> run_path;  ///< where the loader looks for them, DT_RUNPATH
};

/// Reads them from the ELF file of `program`. Throws FileError when it cannot be read or is no 64-bit
/// program.
Needs read_needs(const std::filesystem::path& program);

}  // namespace lockstep::start
