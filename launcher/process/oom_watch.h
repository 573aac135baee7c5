// Tells a process that the kernel killed for lack of memory from one that somebody killed with SIGKILL.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {

class OomWatch {
 public:
  /// Watches from now on. `root`: stands before all paths, for tests.
  explicit OomWatch(std::string root = "");

  /// Why the kernel killed `pid`, a process that SIGKILL has ended: by its log, where that may be read, or by the counters of
  /// this process's control groups, one of which has counted a kill since the last call. Empty: it was not the kernel.
  std::string reason(pid_t pid);

 private:
  struct Counter {
    std::string directory, path;
    long long kills = 0;
  };
  bool is_in_log(pid_t pid);
  std::string limit() const;

  std::string root_;
  std::vector<Counter> counters_;
  UniqueFd log_;
  std::string read_;  ///< of the log so far, lines about kills
};

}  // namespace lockstep::launcher
