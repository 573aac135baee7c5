#include "launcher/placement.h"

#include <hwloc.h>

#include <algorithm>
#include <memory>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

struct TopologyDeleter {
  void operator()(hwloc_topology* topology) const { ::hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, TopologyDeleter>;

Topology load_topology() {
  hwloc_topology_t raw = nullptr;
  if (::hwloc_topology_init(&raw) != 0) throw Error("--numa-binding: hwloc cannot be started");
  Topology topology(raw);
  if (::hwloc_topology_load(raw) != 0)
    throw Error("--numa-binding: hwloc cannot read this machine's topology");
  return topology;
}

CpuSet cores_of(hwloc_const_bitmap_t set) {
  CpuSet cores;
  for (int i = ::hwloc_bitmap_first(set); i >= 0; i = ::hwloc_bitmap_next(set, i)) cores.push_back(i);
  return cores;
}

/// The last level of caches that some cores, but maybe not all, share.
hwloc_obj_type_t last_cache(hwloc_topology_t topology) {
  for (const hwloc_obj_type_t type : {HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE}) {
    if (::hwloc_get_nbobjs_by_type(topology, type) > 0) return type;
  }
  return HWLOC_OBJ_NUMANODE;
}

std::vector<CoreGroup> groups_of(hwloc_topology_t topology, hwloc_obj_type_t type) {
  std::vector<CoreGroup> groups;
  hwloc_const_bitmap_t allowed = ::hwloc_topology_get_allowed_cpuset(topology);
  for (hwloc_obj_t object = ::hwloc_get_next_obj_by_type(topology, type, nullptr); object != nullptr;
       object = ::hwloc_get_next_obj_by_type(topology, type, object)) {
    hwloc_bitmap_t cores = ::hwloc_bitmap_alloc();
    ::hwloc_bitmap_and(cores, object->cpuset, allowed);
    CpuSet list = cores_of(cores);
    ::hwloc_bitmap_free(cores);
    if (!list.empty()) groups.push_back({std::move(list)});
  }
  // A machine whose firmware names no sockets or caches is one group.
  if (groups.empty()) groups.push_back({cores_of(allowed)});
  return groups;
}

}  // namespace

std::vector<CpuSet> deal_cores(const std::vector<CoreGroup>& groups, int ranks, bool divide) {
  const size_t count = static_cast<size_t>(ranks);
  std::vector<std::vector<size_t>> members(groups.size());
  for (size_t rank = 0; rank < count; ++rank) members[rank * groups.size() / count].push_back(rank);
  std::vector<CpuSet> result(count);
  for (size_t g = 0; g < groups.size(); ++g) {
    const CpuSet& cores = groups[g].cores;
    if (divide && members[g].size() > cores.size()) {
      throw ValueError("--numa-binding exclusive: " + std::to_string(members[g].size()) + " ranks share " +
                       std::to_string(cores.size()) + " cores; start fewer ranks, or use node");
    }
    for (size_t i = 0; i < members[g].size(); ++i) {
      const size_t begin = divide ? i * cores.size() / members[g].size() : 0;
      const size_t end = divide ? (i + 1) * cores.size() / members[g].size() : cores.size();
      result[members[g][i]].assign(cores.begin() + static_cast<std::ptrdiff_t>(begin),
                                   cores.begin() + static_cast<std::ptrdiff_t>(end));
    }
  }
  return result;
}

std::vector<CpuSet> place_ranks(Binding binding, int ranks) {
  if (binding == Binding::none) return {};
  const Topology topology = load_topology();
  hwloc_obj_type_t type = HWLOC_OBJ_NUMANODE;
  if (binding == Binding::socket) type = HWLOC_OBJ_PACKAGE;
  if (binding == Binding::core_complex) type = last_cache(topology.get());
  return deal_cores(groups_of(topology.get(), type), ranks, binding == Binding::exclusive);
}

std::string core_list(const CpuSet& cores) {
  std::string text;
  for (size_t i = 0; i < cores.size();) {
    size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(cores[i]);
    if (last > i) text += "-" + std::to_string(cores[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace lockstep::launcher
