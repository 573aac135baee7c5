// The guardian: a process between lockrun and the workers that sees to it that nothing outlives the job.
//
// Who starts whom, and why. lockrun, the process that the user started, forks the guardian; the guardian
// starts the workers (and the store) and is the sub-reaper of everything that they start.
//   - lockrun dies, by any means: the guardian reads the end of its socket, kills all descendants and exits.
//     Workers cannot escape it: an orphan's new parent is the nearest sub-reaper above it, whatever session
//     or process group it is in. The guardian has a session of its own, so what kills lockrun's process group
//     does not reach it.
//   - the guardian dies: the workers get SIGKILL (PR_SET_PDEATHSIG), and what they had started becomes
//     lockrun's, which is a sub-reaper too and kills it.
// The guardian decides nothing: lockrun tells it which signals to send and when to finish, and hears what
// happens to the workers. It holds no more than its memory at the fork and has one thread.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "launcher/process/job_cgroup.h"
#include "lockstep/base/fd.h"
#include "lockstep/job/child_process.h"

namespace lockstep::launcher {

/// From lockrun to the guardian.
struct Command {
  enum Kind : int {
    signal_workers,  ///< `signal` to the process group of every running worker
    start_store,
    replace_worker,  ///< kill what is left of worker `value`, which has ended, and start it again
    start_spare,     ///< in slot `spare`
    finish,          ///< end what is left over and exit; the second time: at once
  };
  Kind kind;
  int signal;
  int value = 0;  ///< that the signal carries to the workers themselves; 0: none
  /// replace_worker: the slot of the spare that takes the place, if it lives; kNoSpare: a new process does.
  int spare = -1;
};

inline constexpr int kNoSpare = -1;

/// From the guardian to lockrun.
struct Event {
  enum Kind : int {
    started,       ///< of a worker with `spare`: that one has taken its place
    start_failed,  ///< `status` is errno; `pid` is -1 if not even a process could be made
    no_directory,  ///< one in GuardianPlan::directories, so nothing is started; `status` is errno
    exited,        ///< `status` as from waitpid
    stopped,       ///< `status` is the signal
    continued,
    spare_waits,  ///< a spare has run the program up to init()
    finished,     ///< all are gone; `status` is the number of left-over processes that were ended
  };
  Kind kind;
  int process;  ///< local rank, kStore, or kSpareProcess
  pid_t pid;
  int status;
  double monotonic;      ///< when the guardian saw it
  int spare = kNoSpare;  ///< its slot
};

inline constexpr int kStore = -1, kSpareProcess = -3;

struct GuardianPlan {
  std::vector<job::ProcessSpec> workers;  ///< by local rank
  std::vector<job::ProcessSpec> spares;   ///< by slot; with the environment of a rank
  std::optional<job::ProcessSpec> store;  ///< not startable without
  std::string scratch_directory;          ///< made at the start and removed in the end
  std::vector<std::string> directories;   ///< to be made in it; empty: the job can do without it
  bool may_replace = false;               ///< Command::replace_worker may come
  double leftover_timeout =
      0;  ///< seconds for left-over processes to end by themselves, and again after SIGTERM
  const JobCgroup* cgroup = nullptr;  ///< that the workers are in, if any; must live as long as the guardian
  sigset_t worker_mask;
  std::vector<int> lockrun_fds;  ///< lockrun's own ends of the workers' pipes, not to be kept open
};

/// lockrun's side of the guardian.
class Guardian {
 public:
  /// Forks it. The calling process becomes a sub-reaper and must have a single thread. Throws Error.
  explicit Guardian(const GuardianPlan& plan);
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;
  /// Kills what is left of the job, the guardian included.
  ~Guardian();

  /// Makes it go on where somebody has stopped it.
  void wake();
  int fd() const { return socket_.get(); }  ///< readable when receive() has something
  void send(Command command);
  /// Next event; nullopt when there is none now. `gone()` tells whether there can be more.
  std::optional<Event> receive();
  bool gone() const { return gone_; }

 private:
  UniqueFd socket_;
  pid_t pid_ = -1;
  std::vector<pid_t> earlier_children_;
  const JobCgroup* cgroup_;
  std::string scratch_directory_;
  bool gone_ = false;
};

}  // namespace lockstep::launcher
