// A log file that a full disk cannot stop the job with.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {

class LogFile {
 public:
  /// Creates `path`, or appends to it. Throws FileError.
  explicit LogFile(std::string path);

  /// Writes all of it or, when that fails, drops it.
  void write(std::string_view bytes);
  /// What went wrong first, as one line; told once.
  std::optional<std::string> take_error();

 private:
  std::string path_;
  UniqueFd fd_;
  int error_ = 0;
  bool told_ = false;
};

/// Makes `path` and what is missing above it. Throws FileError.
void make_directories(const std::string& path);

/// Makes a new directory `prefix`_<random> that only the user can enter and returns its name. Throws
/// FileError.
std::string make_unique_directory(const std::string& prefix);

}  // namespace lockstep::launcher
