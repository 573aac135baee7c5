// Which algorithm an all-reduce takes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/types.h"

namespace lockstep::algorithms {

/// "auto", "direct", "reduce_broadcast", ...
const char* name_of(AllReduceAlgorithm algorithm);
/// Returns the names of all algorithms, "auto" first.
std::vector<std::string> names();
/// Throws ValueError listing the names when there is none such.
AllReduceAlgorithm algorithm_named(const std::string& name);

/// What AUTO stands for, on every backend, at every size and number of ranks: it is the fastest on 2 cores
/// (`lockstep bench all-reduce --algorithm ...`, docs/performance/collectives.md). On Gloo, TREE and REDUCE_BROADCAST are faster up to
/// 1 MiB where ranks share cores; but the group may have ranks in Python, which run Gloo's own.
inline constexpr AllReduceAlgorithm kAutomatic = AllReduceAlgorithm::DIRECT;

/// LOCKSTEP_ALL_REDUCE_ALGORITHM's, or AUTO. Throws ValueError for an unknown name.
AllReduceAlgorithm of_environment();

/// What a call uses: its own wish, else the environment's as it was at the first call (it is the job's, and a call takes a
/// fraction of a microsecond), else kAutomatic.
inline AllReduceAlgorithm resolve(std::optional<AllReduceAlgorithm> wish) {
  static const AllReduceAlgorithm otherwise = of_environment();
  const AllReduceAlgorithm algorithm = wish.value_or(otherwise);
  return algorithm == AllReduceAlgorithm::AUTO ? kAutomatic : algorithm;
}

/// The node of each rank, for HIERARCHICAL: as many neighbors as LOCKSTEP_RANKS_PER_NODE says, else those of a machine
/// (`machines`: each rank's).
std::vector<int> choose_nodes(std::vector<int> machines);

}  // namespace lockstep::algorithms
