// Starting a child process.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

namespace lockstep::launcher {

struct ProcessSpec {
  std::string path;
  std::vector<std::string> argv;
  std::vector<std::string> environment;
  int stdin_fd = -1, stdout_fd = -1, stderr_fd = -1;
  std::vector<int> inherited_fds{};  ///< stay open under the same number
  int cgroup_fd = -1;                ///< of a group to move into; -1: none
  std::vector<int> cores{};          ///< that it may run on; empty: those of the calling process
  bool own_session = false;          ///< as well as a process group: away from the caller's terminal
};

struct StartedProcess {
  pid_t pid = -1;
  int error = 0;  ///< errno of the step that failed; then no process is left
};

/// Starts `spec` as the leader of a process group of its own, so that a signal reaches it and its children
/// and the terminal's do not. It is killed when the calling process dies. Signal mask, SIGPIPE and SIGXFSZ
/// are set to `mask` and the default. Blocks until the program is executed or has failed to.
StartedProcess start_process(const ProcessSpec& spec, const sigset_t& mask);

/// Kills (SIGKILL) all children of this process, and the descendants that become its children when their
/// parents die (it must be a sub-reaper), and reaps them, except the processes in `spared`. Gives up after
/// `timeout_seconds` on processes that cannot be killed. Returns how many were killed.
int kill_descendants(const std::vector<pid_t>& spared, double timeout_seconds);

/// Children of this process, the dead and unreaped ones included.
std::vector<pid_t> children();

}  // namespace lockstep::launcher
