// Where processes are: their threads' stacks, as far as the kernel and the tools at hand tell.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {

struct StackTarget {
  int rank;
  pid_t pid;
};

/// Whether a signal has stopped that process.
bool is_stopped(pid_t pid);

/// Whether the process has a handler for that signal, which ends it otherwise.
bool catches(pid_t pid, int signal);

/// Gathers stacks in a child process, so that nobody waits for it; what it finds is read from fd().
class StackDump {
 public:
  /// Starts it. The calling process must have a single thread. Throws Error.
  explicit StackDump(const std::vector<StackTarget>& targets);
  StackDump(const StackDump&) = delete;
  StackDump& operator=(const StackDump&) = delete;
  /// Ends it if it still runs.
  ~StackDump();

  int fd() const { return fd_.get(); }
  /// Takes what is there; true when all of it is in text().
  bool read_some();
  const std::string& text() const { return text_; }

 private:
  UniqueFd fd_;
  pid_t pid_ = -1;
  std::string text_;
};

}  // namespace lockstep::launcher
