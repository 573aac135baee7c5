// Which ranks are on which machine, as all ranks of a job agree. A machine is a set of ranks that share memory.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/joining/store_round.h"

namespace lockstep::job {
struct LaunchEnvironment;
}

namespace lockstep {

/// Returns each rank's machine, numbered from 0 in the order of their first ranks: the launcher's group ranks; if it does not
/// tell them, what the ranks find when they try to open each other's memory. Never from host names. Blocks until all ranks of
/// the job have called it. Throws CommError on all ranks if one does not come, and ValueError on all if `backend` is not the same
/// on all: each would wait for others in places where they never come.
std::vector<int> agree_on_machines(const StoreRounds& rounds, const job::LaunchEnvironment& launch,
                                   const std::string& backend);

/// Whether the launcher has counted the ranks of each machine as `machine_of` has them. The same on all ranks.
bool is_as_the_launcher_says(const StoreRounds& rounds, const std::vector<int>& machine_of,
                             const job::LaunchEnvironment& launch);

/// What agree_on_local_ranks() and agree_on_memory() tell each other about in the store.
inline const char* const kLocalRankRound = "local_rank";
inline const char* const kMemoryRound = "problem";

/// Returns, on all ranks, which rank of a machine is not numbered locally in their order; empty: all are.
std::string agree_on_local_ranks(const StoreRounds& rounds, const std::vector<int>& machine_of,
                                 const job::LaunchEnvironment& launch);

/// What all ranks know of the memory of their machines.
struct AgreedMemory {
  std::string problem{};  ///< which rank does not share it, and why; empty: all do
  bool all_heal = false;  ///< every rank can be replaced in it
};
/// Every rank says whether it shares the memory of its machine: `problem` says why not; empty: it does. `heals`: it can be
/// replaced there. Returns the same on all ranks.
AgreedMemory agree_on_memory(const StoreRounds& rounds, const std::string& problem, bool heals);

/// The map of the job that this process has joined: each rank's machine.
void set_machines_of_job(std::vector<int> machine_of);

/// The machines of the job's ranks `ranks`, by their place in the list. One for all where no map was set.
std::vector<int> machines_of(const std::vector<int>& ranks);

/// The job's ranks on each machine, in order.
std::vector<std::vector<int>> ranks_by_machine(int world_size);

}  // namespace lockstep
