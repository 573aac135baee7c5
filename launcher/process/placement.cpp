#include "launcher/process/placement.h"

#include <fmt/format.h>

#include <hwloc.h>

#include <algorithm>
#include <memory>

#include "launcher/process/gpus.h"
#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
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

/// `cpus` by physical cores.
CoreGroup make_group(hwloc_topology_t topology, hwloc_const_bitmap_t cpus) {
  CoreGroup group;
  const hwloc_obj_type_t type =
      ::hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  for (hwloc_obj_t core = ::hwloc_get_next_obj_by_type(topology, type, nullptr); core != nullptr;
       core = ::hwloc_get_next_obj_by_type(topology, type, core)) {
    hwloc_bitmap_t logical = ::hwloc_bitmap_alloc();
    ::hwloc_bitmap_and(logical, core->cpuset, cpus);
    CpuSet list = cores_of(logical);
    ::hwloc_bitmap_free(logical);
    if (!list.empty()) group.cores.push_back(std::move(list));
  }
  return group;
}

std::vector<CoreGroup> find_groups(hwloc_topology_t topology, hwloc_obj_type_t type) {
  std::vector<CoreGroup> groups;
  hwloc_const_bitmap_t allowed = ::hwloc_topology_get_allowed_cpuset(topology);
  for (hwloc_obj_t object = ::hwloc_get_next_obj_by_type(topology, type, nullptr); object != nullptr;
       object = ::hwloc_get_next_obj_by_type(topology, type, object)) {
    hwloc_bitmap_t cpus = ::hwloc_bitmap_alloc();
    ::hwloc_bitmap_and(cpus, object->cpuset, allowed);
    CoreGroup group = make_group(topology, cpus);
    ::hwloc_bitmap_free(cpus);
    if (!group.cores.empty()) groups.push_back(std::move(group));
  }
  // A machine whose firmware names no sockets or caches is one group.
  if (groups.empty()) groups.push_back(make_group(topology, allowed));
  return groups;
}

/// The usable cores of the NUMA node of each rank's GPU; empty where there is no GPU for each.
std::vector<CpuSet> cores_near_gpus(hwloc_topology_t topology, int ranks) {
  const std::vector<int> nodes = gpu_numa_nodes("/", env::get(env::kCudaVisibleDevices));
  std::vector<CpuSet> near;
  if (nodes.size() < static_cast<size_t>(ranks)) return near;
  for (int rank = 0; rank < ranks; ++rank) {
    const unsigned node = static_cast<unsigned>(nodes[static_cast<size_t>(rank)]);
    const hwloc_obj_t object = ::hwloc_get_numanode_obj_by_os_index(topology, node);
    if (object == nullptr) return {};
    hwloc_bitmap_t cpus = ::hwloc_bitmap_alloc();
    ::hwloc_bitmap_and(cpus, object->cpuset, ::hwloc_topology_get_allowed_cpuset(topology));
    near.push_back(cores_of(cpus));
    ::hwloc_bitmap_free(cpus);
  }
  return near;
}

}  // namespace

CpuSet CoreGroup::all() const {
  CpuSet result;
  for (const CpuSet& core : cores) result.insert(result.end(), core.begin(), core.end());
  std::sort(result.begin(), result.end());
  return result;
}

std::vector<size_t> spread(size_t groups, int ranks) {
  const size_t count = static_cast<size_t>(ranks);
  std::vector<size_t> homes(count);
  for (size_t rank = 0; rank < count; ++rank) homes[rank] = rank * groups / count;
  return homes;
}

std::vector<size_t> nearest(const std::vector<CoreGroup>& groups, const std::vector<CpuSet>& near) {
  std::vector<size_t> homes;
  for (size_t rank = 0; rank < near.size(); ++rank) {
    std::vector<size_t> candidates;
    for (size_t g = 0; g < groups.size(); ++g) {
      const CpuSet cores = groups[g].all();
      if (std::find_first_of(cores.begin(), cores.end(), near[rank].begin(), near[rank].end()) !=
          cores.end()) {
        candidates.push_back(g);
      }
    }
    if (candidates.empty()) {
      throw ValueError(
          fmt::format("--numa-binding: none of the cores near the GPU of local rank {} may be used here (its "
                      "affinity mask or cgroup leaves them out)",
                      rank));
    }
    const auto before = near.begin() + static_cast<std::ptrdiff_t>(rank);
    const auto turn = static_cast<size_t>(std::count(near.begin(), before, *before));
    homes.push_back(candidates[turn % candidates.size()]);
  }
  return homes;
}

std::vector<CpuSet> deal_cores(const std::vector<CoreGroup>& groups, const std::vector<size_t>& homes,
                               bool divide) {
  std::vector<CpuSet> result(homes.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<size_t> members;
    for (size_t rank = 0; rank < homes.size(); ++rank) {
      if (homes[rank] == g) members.push_back(rank);
    }
    const auto& cores = groups[g].cores;
    if (divide && members.size() > cores.size()) {
      throw ValueError(
          fmt::format("--numa-binding exclusive: {} ranks share {} cores; start fewer ranks, or use node",
                      members.size(), cores.size()));
    }
    auto begin = cores.begin();
    for (size_t i = 0; i < members.size(); ++i) {
      if (!divide) {
        result[members[i]] = groups[g].all();
        continue;
      }
      // The first ones have one more, where it does not come out even.
      const size_t share = cores.size() / members.size() + (i < cores.size() % members.size() ? 1 : 0);
      const auto end = begin + static_cast<std::ptrdiff_t>(share);
      result[members[i]] = CoreGroup{{begin, end}}.all();
      begin = end;
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
  const auto groups = find_groups(topology.get(), type);
  const auto near = cores_near_gpus(topology.get(), ranks);
  return deal_cores(groups, near.empty() ? spread(groups.size(), ranks) : nearest(groups, near),
                    binding == Binding::exclusive);
}

std::string core_list(const CpuSet& cores) {
  std::string text;
  for (size_t i = 0; i < cores.size();) {
    size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cores[i]);
    if (last > i) text += "-" + std::to_string(cores[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace lockstep::launcher
