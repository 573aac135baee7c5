// A job on machines that this one plays: a lockrun on each.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "bench/network/network.h"
#include "lockstep/base/fd.h"

namespace lockstep::bench {

/// What the ranks of one job are.
struct MachineProgram {
  std::string program{};  ///< words for the shell
  std::string uplink{};   ///< LOCKSTEP_UPLINK; "": gloo
};

/// The ranks of one job, and what rank 0 prints. Its destructor ends them.
class MachineJob {
 public:
  /// `layout`: ranks by machine. Does not block. Throws Error.
  MachineJob(const Network& network, const std::vector<int>& layout, const MachineProgram& program);
  MachineJob(const MachineJob&) = delete;
  ~MachineJob();

  /// Blocks until it has ended, and returns what rank 0 has printed. Throws Error, which quotes the ranks and calls the job
  /// `name`, if it has failed or takes ten minutes. `look`: called some times a second; what it throws ends the wait.
  std::string finish(const std::string& name, const std::function<void()>& look = {});

 private:
  void start(const std::string& command, int stdout_fd);
  /// Until all have ended, which they must by `end`. False: one has failed.
  bool wait(double end);
  std::string read_what_was_said() const;
  UniqueFd output_, said_;
  std::vector<pid_t> processes_;
};

}  // namespace lockstep::bench
