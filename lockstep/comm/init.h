// Joining the job that a launcher started.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace c10d {
class Store;
}

namespace lockstep {

/// Options of init().
struct InitOptions {
  /// "lockstep", "gloo", "nccl" (GPU tensors by NCCL, others by Gloo; docs/gpu.md), or "" for
  /// LOCKSTEP_BACKEND. Where that is unset too: lockstep or, where ranks of one machine share no memory, gloo;
  /// rank 0 then says so in one line of standard error. See available_backends().
  std::string backend{};
  /// Deadline of every operation of the group that names none itself, and of init() itself.
  std::chrono::milliseconds timeout = kDefaultTimeout;
  /// Where the ranks meet: "" or "env://" (the launcher's environment), "tcp://host:port" (rank 0 serves it)
  /// or "file:///path" (a file that does not exist yet).
  std::string init_method{};
  /// This process's place, where the environment does not tell it; -1: as the init_method's ?rank= and
  /// &world_size= or the environment say.
  int rank = -1;
  int world_size = -1;  ///< number of ranks, likewise
  /// A thread that keeps operations of the "lockstep" backend going while this rank computes, and completes
  /// the futures of Work::get_future (docs/collectives/asynchronous.md); default: LOCKSTEP_PROGRESS_THREAD, else none.
  std::optional<bool> progress_thread{};
};

/// The job as this process sees it: the group of all ranks plus the place of this one.
class World : public ProcessGroup {
 public:
  /// For init(); programs call that.
  World(ProcessGroup group, int local_rank, int local_world_size, int group_rank);
  int local_rank() const { return local_rank_; }              ///< this rank, counted on its machine
  int local_world_size() const { return local_world_size_; }  ///< ranks on this machine
  int group_rank() const { return group_rank_; }              ///< the node's number
  /// Works like lockstep::destroy() as long as this is the group of the job; later it does nothing.
  void destroy() const;

 private:
  int local_rank_, local_world_size_, group_rank_;
};

/// Joins the job described by the launcher's environment (lockrun, torchrun, Open MPI's and MPICH's mpirun,
/// srun) or by the init_method; alone when there is neither. Blocks until all ranks are there. The result is
/// also the default group of everything that takes a group. Throws ValueError on a contradictory environment,
/// TimeoutError naming the ranks that did not come, CommError when the lockstep backend was chosen and ranks of
/// one machine do not share memory.
World init(InitOptions options = {});
/// Works like init(options), but ranks meet in `store` (c10d's TCPStore, FileStore, HashStore, PrefixStore);
/// options.rank and options.world_size are needed unless the environment tells them.
World init(const c10::intrusive_ptr<c10d::Store>& store, InitOptions options = {});

/// Did a launcher (lockrun, torchrun, mpirun, srun) start this process as a rank?
bool is_launched();

/// The names that InitOptions::backend takes here.
std::vector<std::string> available_backends();

/// The store through which the ranks met; where they met without one, the launcher's at
/// MASTER_ADDR:MASTER_PORT, opened now, or, alone, a HashStore. Use a PrefixStore over it. Throws Error
/// without init() and ValueError where the launcher serves none.
c10::intrusive_ptr<c10d::Store> default_store();

/// The group that init() made. Throws Error when init() was not called.
World& default_world();
/// Whether init() was called, and destroy() was not.
bool is_initialized();

/// Leaves the job. Peers that still wait for this rank are told. Called at exit when the program did not.
void destroy();

}  // namespace lockstep
