// What this machine is made of, as hwloc sees it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::topo {

/// A logical core.
struct Cpu {
  int number = 0;  ///< the kernel's
  int core = 0, package = 0, numa_node = 0;
  std::vector<int>
      caches{};  ///< for each level of data caches, 1 first: the cache's place among those of its level
};

struct Cache {
  int level = 0;
  uint64_t bytes = 0;
  int count = 0;  ///< of this kind in the machine
};

struct NumaNode {
  int number = 0;
  uint64_t bytes = 0;
  std::vector<int> cpus{};
};

struct Gpu {
  std::string name{}, address{};  ///< PCI's
  int numa_node = -1;             ///< -1: not known
  /// PCI bridges above it, the nearest first; the last one is the processor's host bridge.
  std::vector<uint64_t> bridges{};
};

struct Topology {
  std::string host{}, cpu_model{};
  int packages = 0, cores = 0;
  std::vector<Cpu> cpus{};  ///< that this process may use
  std::vector<Cache> caches{};
  std::vector<NumaNode> numa_nodes{};
  std::vector<Gpu> gpus{};
  int usable_cores = 1;  ///< what the affinity mask and the cgroup's quota leave
};

/// Reads this machine. Throws Error.
Topology read_topology();

/// How two logical cores are connected, from near to far: SMT (threads of one core), L2, L3 (a cache that
/// they share), NODE (the same NUMA node), SOCK (the same socket), SYS. X for the same one.
std::string link_between(const Cpu& a, const Cpu& b);
/// How two GPUs are connected, in nvidia-smi's words: PIX (one PCI bridge), PXB (several), PHB (the host
/// bridge), NODE, SYS; "?" where their NUMA nodes are not known.
std::string link_between(const Gpu& a, const Gpu& b);
/// NODE or SYS; "?" where the GPU's NUMA node is not known.
std::string link_between(const Cpu& a, const Gpu& b);

}  // namespace lockstep::topo
