// Which cores each rank of this machine gets.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

#include "launcher/cli/options.h"

namespace lockstep::launcher {

using CpuSet = std::vector<int>;  ///< numbers of logical cores, ascending

/// One block of cores of the machine that a binding deals out: a NUMA node, a socket, the cores behind one
/// last-level cache or, for exclusive, a NUMA node whose cores are divided.
struct CoreGroup {
  std::vector<CpuSet> cores;  ///< physical cores: the logical ones of each
  CpuSet all() const;
};

/// The group of every local rank: blocks of neighbors.
std::vector<size_t> spread(size_t groups, int ranks);

/// The group of every local rank that is to be near `near[rank]`, the cores of its GPU's NUMA node: the one
/// that holds cores of these; where there are several, ranks with the same cores take turns. Throws
/// ValueError when none of these may be used.
std::vector<size_t> nearest(const std::vector<CoreGroup>& groups, const std::vector<CpuSet>& near);

/// The cores of every rank, whose group is `homes[rank]`. `divide`: ranks of one group get physical cores of
/// their own, else all of the group's. Throws ValueError when there are fewer cores than ranks to divide them
/// among.
std::vector<CpuSet> deal_cores(const std::vector<CoreGroup>& groups, const std::vector<size_t>& homes,
                               bool divide);

/// The cores of every local rank for `binding`, from hwloc's view of what this process may use, near the
/// rank's GPU where there is one for each; empty for none. Throws Error when the machine's topology cannot be
/// read.
std::vector<CpuSet> place_ranks(Binding binding, int ranks);

/// "0-3,8" for 0, 1, 2, 3 and 8.
std::string core_list(const CpuSet& cores);

}  // namespace lockstep::launcher
