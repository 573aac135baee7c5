// Child processes that end with their parent.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

#include "lockstep/base/fd.h"

namespace lockstep::job {

enum class Group {
  callers,      ///< signals of the caller's terminal and to its process group reach it
  own,          ///< a process group of its own: a signal to it reaches the process and its children
  own_session,  ///< and a session: away from the caller's terminal too
};

struct ProcessSpec {
  std::string path;
  std::vector<std::string> argv;
  std::vector<std::string> environment;
  int stdin_fd = -1, stdout_fd = -1, stderr_fd = -1;  ///< -1: the caller's
  std::vector<int> inherited_fds{};                   ///< stay open under the same number
  int cgroup_fd = -1;        ///< of a group to move into; -1: none. For callers with a single thread
  std::vector<int> cores{};  ///< that it may run on; empty: those of the caller
  Group group = Group::own;
};

struct StartedProcess {
  pid_t pid = -1;
  int error = 0;           ///< errno of the step that failed; then no process is left
  bool could_fork = true;  ///< false: there was no process at all
};

/// Starts `spec`. It is killed when the calling thread ends. Signal mask, SIGPIPE and SIGXFSZ are set to
/// `mask` and the default. Blocks until the program is executed or has failed to. May be called in a process
/// with several threads.
StartedProcess start_process(const ProcessSpec& spec, const sigset_t& mask);

/// fork() for a helper called `name` (15 bytes at most) that is killed when this process dies: 0 in the
/// child. For processes with a single thread. Throws Error.
pid_t fork_helper(const char* name);

/// Readable when child `pid` has ended. Invalid, with errno, where that is impossible.
UniqueFd open_pidfd(pid_t pid);

/// Kills (SIGKILL) all children of this process, and the descendants that become its children when their
/// parents die (it must be a sub-reaper), and reaps them, except the processes in `spared`. Gives up after
/// `timeout_seconds` on processes that cannot be killed. Returns how many were killed.
int kill_descendants(const std::vector<pid_t>& spared, double timeout_seconds);

/// Children of this process, the dead and unreaped ones included.
std::vector<pid_t> children();

}  // namespace lockstep::job
