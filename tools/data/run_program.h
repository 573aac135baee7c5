// Programs of the system, such as apt-get, and a place for what they write, which a signal leaves empty.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/job/stop_signals.h"

namespace lockstep::tools {

/// A new directory, removed with all that is in it. While it is there, Ctrl-C and SIGTERM are noted (StopSignals) for
/// run_program() and end_if_stopped().
class TemporaryDirectory {
 public:
  /// In the system's place for such; or in `parent`, for what is to be renamed to a name there. Throws FileError.
  explicit TemporaryDirectory(const std::filesystem::path& parent = {});
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory();
  const std::filesystem::path& path() const { return path_; }

 private:
  StopSignals signals_{};
  std::filesystem::path path_;
};

/// Throws ReportedError with the exit code 128 + N where the signal N has come that asks this process to end.
void end_if_stopped();

/// Runs a program in `directory` and waits for it. Its output goes to our standard error. Throws Error with `help`. A signal
/// that asks us to end ends it too, and then end_if_stopped().
void run_program(const std::vector<std::string>& words, const std::filesystem::path& directory,
                 const std::string& help);

}  // namespace lockstep::tools
