// Which cores each rank of this machine gets.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

#include "launcher/options.h"

namespace lockstep::launcher {

using CpuSet = std::vector<int>;  ///< numbers of logical cores, ascending

/// One block of cores of the machine that a binding deals out: a NUMA node, a socket, the cores behind one
/// last-level cache or, for exclusive, a NUMA node whose cores are divided.
struct CoreGroup {
  CpuSet cores;
};

/// Deals `groups` to `ranks` local ranks in blocks of neighbours. `divide`: ranks of one group get cores of
/// their own, else all of the group's. Throws ValueError when there are fewer cores than ranks to divide them
/// among.
std::vector<CpuSet> deal_cores(const std::vector<CoreGroup>& groups, int ranks, bool divide);

/// The cores of every local rank for `binding`, from hwloc's view of what this process may use; empty for
/// none. Throws Error when the machine's topology cannot be read.
std::vector<CpuSet> place_ranks(Binding binding, int ranks);

/// "0-3,8" for 0, 1, 2, 3 and 8.
std::string core_list(const CpuSet& cores);

}  // namespace lockstep::launcher
