#include "tools/topo/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host_name.h"

namespace lockstep::topo {
namespace {

struct Deleter {
  void operator()(hwloc_topology* topology) const { ::hwloc_topology_destroy(topology); }
};

constexpr hwloc_obj_type_t kDataCaches[] = {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE};

/// Logical index of the ancestor of that type; 0 where the machine names none.
int place_of(hwloc_topology_t topology, hwloc_obj_t object, hwloc_obj_type_t type) {
  const hwloc_obj_t found = ::hwloc_get_ancestor_obj_by_type(topology, type, object);
  return found != nullptr ? static_cast<int>(found->logical_index) : 0;
}

std::vector<int> numbers(hwloc_const_bitmap_t set) {
  std::vector<int> result;
  for (int i = ::hwloc_bitmap_first(set); i >= 0; i = ::hwloc_bitmap_next(set, i)) result.push_back(i);
  return result;
}

void read_cpus(hwloc_topology_t topology, Topology& result) {
  for (hwloc_obj_t pu = nullptr;
       (pu = ::hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, pu)) != nullptr;) {
    Cpu cpu;
    cpu.number = static_cast<int>(pu->os_index);
    cpu.core = place_of(topology, pu, HWLOC_OBJ_CORE);
    cpu.package = place_of(topology, pu, HWLOC_OBJ_PACKAGE);
    for (const NumaNode& node : result.numa_nodes) {
      if (std::find(node.cpus.begin(), node.cpus.end(), cpu.number) != node.cpus.end())
        cpu.numa_node = node.number;
    }
    for (const hwloc_obj_type_t type : kDataCaches) {
      const hwloc_obj_t cache = ::hwloc_get_ancestor_obj_by_type(topology, type, pu);
      cpu.caches.push_back(cache != nullptr ? static_cast<int>(cache->logical_index) : -1);
    }
    if (::hwloc_bitmap_isset(::hwloc_topology_get_allowed_cpuset(topology), pu->os_index))
      result.cpus.push_back(cpu);
  }
}

void read_caches(hwloc_topology_t topology, Topology& result) {
  for (int level = 1; level <= 3; ++level) {
    const hwloc_obj_type_t type = kDataCaches[level - 1];
    const int count = ::hwloc_get_nbobjs_by_type(topology, type);
    if (count <= 0) continue;
    const hwloc_obj_t first = ::hwloc_get_obj_by_type(topology, type, 0);
    result.caches.push_back({level, first->attr->cache.size, count});
  }
}

void read_gpus(hwloc_topology_t topology, Topology& result) {
  for (hwloc_obj_t device = nullptr; (device = ::hwloc_get_next_pcidev(topology, device)) != nullptr;) {
    const unsigned base_class = device->attr->pcidev.class_id >> 8;
    // Display controllers and accelerators; a virtual machine's plain display is none that computes.
    if (base_class != 0x12 && !(base_class == 0x03 && device->attr->pcidev.vendor_id == 0x10de)) continue;
    char address[32];
    std::snprintf(address, sizeof address, "%04x:%02x:%02x.%x", device->attr->pcidev.domain,
                  device->attr->pcidev.bus, device->attr->pcidev.dev, device->attr->pcidev.func);
    const hwloc_obj_t near = ::hwloc_get_non_io_ancestor_obj(topology, device);
    const int node = near != nullptr && near->nodeset != nullptr ? ::hwloc_bitmap_first(near->nodeset) : -1;
    Gpu gpu{device->name != nullptr ? device->name : "GPU", address, node};
    for (hwloc_obj_t above = device->parent; above != nullptr && above->type == HWLOC_OBJ_BRIDGE;
         above = above->parent) {
      gpu.bridges.push_back(above->gp_index);
    }
    result.gpus.push_back(gpu);
  }
}

}  // namespace

Topology read_topology() {
  hwloc_topology_t raw = nullptr;
  if (::hwloc_topology_init(&raw) != 0) throw Error("hwloc cannot be started");
  const std::unique_ptr<hwloc_topology, Deleter> topology(raw);
  ::hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (::hwloc_topology_load(raw) != 0) throw Error("hwloc cannot read this machine's topology");
  Topology result;
  result.host = host_name();
  result.packages = std::max(1, ::hwloc_get_nbobjs_by_type(raw, HWLOC_OBJ_PACKAGE));
  result.cores = ::hwloc_get_nbobjs_by_type(raw, HWLOC_OBJ_CORE);
  if (const hwloc_obj_t package = ::hwloc_get_obj_by_type(raw, HWLOC_OBJ_PACKAGE, 0)) {
    const char* model = ::hwloc_obj_get_info_by_name(package, "CPUModel");
    if (model != nullptr) result.cpu_model = model;
  }
  for (hwloc_obj_t node = nullptr;
       (node = ::hwloc_get_next_obj_by_type(raw, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    result.numa_nodes.push_back(
        {static_cast<int>(node->os_index), node->attr->numanode.local_memory, numbers(node->cpuset)});
  }
  read_cpus(raw, result);
  read_caches(raw, result);
  read_gpus(raw, result);
  result.usable_cores = usable_cores();
  return result;
}

std::string link_between(const Cpu& a, const Cpu& b) {
  if (a.number == b.number) return "X";
  if (a.core == b.core && a.package == b.package) return "SMT";
  for (size_t level = 1; level < a.caches.size() && level < b.caches.size(); ++level) {
    if (a.caches[level] >= 0 && a.caches[level] == b.caches[level]) return fmt::format("L{}", level + 1);
  }
  if (a.numa_node == b.numa_node) return "NODE";
  return a.package == b.package ? "SOCK" : "SYS";
}

std::string link_between(const Gpu& a, const Gpu& b) {
  if (a.address == b.address) return "X";
  for (size_t i = 0; i < a.bridges.size(); ++i) {
    const auto common = std::find(b.bridges.begin(), b.bridges.end(), a.bridges[i]);
    if (common == b.bridges.end()) continue;
    if (i + 1 == a.bridges.size()) return "PHB";
    return i == 0 && common == b.bridges.begin() ? "PIX" : "PXB";
  }
  if (a.numa_node < 0 || b.numa_node < 0) return "?";
  return a.numa_node == b.numa_node ? "NODE" : "SYS";
}

std::string link_between(const Cpu& a, const Gpu& b) {
  if (b.numa_node < 0) return "?";
  return a.numa_node == b.numa_node ? "NODE" : "SYS";
}

}  // namespace lockstep::topo
