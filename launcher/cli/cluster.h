// Machines as other tools name them: the variables of their launchers, Horovod's lists of hosts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

/// This machine's place among several.
struct ClusterPlace {
  int nodes = 1;
  int node_rank = 0;
  std::string master_addr{};
  uint16_t master_port = 0;  ///< 0: the default
  int slots = 0;             ///< ranks on this machine; 0: not said
};

/// The place that mpirun, srun, mpiexec or Kubeflow's PyTorchJob gave to this lockrun; none where it is the
/// only one. Throws ValueError when there are several on one machine, or nothing says where the first machine
/// is.
std::optional<ClusterPlace> place_from_environment();

/// The place of a pod of Kubernetes' Indexed Job with `nodes` pods: JOB_COMPLETION_INDEX is its number. They
/// meet at `master_addr` or, where that is empty, at MASTER_ADDR. None outside of such a Job. Throws
/// ValueError when the index is too large, or nothing says where the first pod is.
std::optional<ClusterPlace> place_in_indexed_job(int nodes, const std::string& master_addr);

/// What to tell a user whose lockrun runs on one of several machines of a SLURM allocation only, because srun
/// did not start it; else empty.
std::string unused_slurm_nodes();

struct Host {
  std::string name;
  int slots = 1;
};

/// "a:2,b" or, from a file, lines "a slots=2"; a host that is named again gets more slots. Throws ValueError
/// naming `source` and the entry.
std::vector<Host> parse_hosts(std::string_view text, const std::string& source);

/// The hosts that get ranks, with as many slots as they get: `num_proc` (0: all slots) are dealt in the order
/// of hosts. Throws ValueError when the slots do not suffice.
std::vector<Host> deal_ranks(std::vector<Host> hosts, int num_proc);

/// Which of the hosts is the machine with these names; none where it is not among them.
std::optional<size_t> find_host(const std::vector<Host>& hosts, const std::vector<std::string>& names);

}  // namespace lockstep::launcher
