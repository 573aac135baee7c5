// Joining the job that a launcher started.
#pragma once

#include <chrono>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

struct InitOptions {
  /// "lockstep", "gloo", or "" for LOCKSTEP_BACKEND, else "lockstep".
  std::string backend{};
  /// Deadline of every operation of the group that names none itself.
  std::chrono::milliseconds timeout = kDefaultTimeout;
};

/// The job as this process sees it: the group of all ranks plus the place of this one.
class World : public ProcessGroup {
 public:
  World(ProcessGroup group, int local_rank, int local_world_size, int group_rank);
  int local_rank() const { return local_rank_; }
  int local_world_size() const { return local_world_size_; }
  int group_rank() const { return group_rank_; }  ///< the node's number

 private:
  int local_rank_, local_world_size_, group_rank_;
};

/// Joins the job described by the launcher's environment (lockrun, torchrun); alone when there is none.
/// Blocks until all ranks are there. The result is also the default group of everything that takes a group.
/// Throws ValueError on a contradictory environment, TimeoutError naming the ranks that did not come.
World init(InitOptions options = {});

/// The group that init() made. Throws Error when init() was not called.
World& default_world();
bool is_initialized();

/// Leaves the job. Peers that still wait for this rank are told. Called at exit when the program did not.
void destroy();

}  // namespace lockstep
