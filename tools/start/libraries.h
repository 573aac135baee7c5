// Where the libraries of LibTorch and Arrow lie on this machine.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tools/start/needs.h"

namespace lockstep::start {

/// Where the loader looks before anywhere else.
inline constexpr const char* kLoaderPath = "LD_LIBRARY_PATH";

/// A package whose libraries an installed program needs, and how a user can have it.
struct Package {
  const char* name;                           ///< as in messages
  const char* version;                        ///< major.minor that the program was built with
  const char* variable;                       ///< environment variable that names its directory
  const char* wheel;                          ///< Python's name for it
  std::vector<std::string> library_prefixes;  ///< its libraries' names begin with one of these
  std::filesystem::path in_site_packages;     ///< where the wheel has its libraries
};

/// Directory to put on LD_LIBRARY_PATH before a program with these needs starts; nullopt when the loader
/// finds the package by itself or the program does not need it. The first of these that holds it, in the
/// version wanted: `variable`, LD_LIBRARY_PATH, the program's own run path, CMAKE_PREFIX_PATH, the active
/// Python environment (VIRTUAL_ENV, CONDA_PREFIX, that of the first python3 on PATH), this user's and the
/// system's Python, the loader's own folders. Throws FileError saying what is missing and how to name it.
std::optional<std::filesystem::path> directory_to_add(const Package& package, const Needs& needs);

}  // namespace lockstep::start
