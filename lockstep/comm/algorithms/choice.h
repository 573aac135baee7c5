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
/// Of all of them, "auto" first.
std::vector<std::string> names();
/// Throws ValueError listing the names when there is none such.
AllReduceAlgorithm algorithm_named(const std::string& name);

/// What AUTO stands for: from a table of measurements that is part of this source. Never AUTO.
AllReduceAlgorithm choose(const std::string& backend, size_t bytes, int ranks);

/// What a call uses: its own wish, else the environment's LOCKSTEP_ALL_REDUCE_ALGORITHM, else the table's.
AllReduceAlgorithm resolve(std::optional<AllReduceAlgorithm> wish, const std::string& backend, size_t bytes,
                           int ranks);

/// Ranks that HIERARCHICAL takes as one node: LOCKSTEP_RANKS_PER_NODE, else the launcher's LOCAL_WORLD_SIZE,
/// else all.
int ranks_per_node(int ranks);

}  // namespace lockstep::algorithms
