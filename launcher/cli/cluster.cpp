#include "launcher/cli/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/cli/flag_value.h"
#include "lockstep/job/meeting_point.h"

namespace lockstep::launcher {
namespace {

constexpr const char* kSlurmStepNodes = "SLURM_STEP_NUM_NODES";
constexpr const char* kSlurmJobNodes = "SLURM_JOB_NUM_NODES";
constexpr const char* kPodIndex = "JOB_COMPLETION_INDEX";

Host parse_host(std::string_view entry, const std::string& source) {
  Host host;
  const size_t space = entry.find_first_of(" \t");
  const size_t colon = entry.rfind(':');
  std::string_view slots;
  if (space != entry.npos) {
    host.name = entry.substr(0, space);
    const size_t equals = entry.find("slots=", space);
    if (equals != entry.npos) slots = entry.substr(equals + 6);
    slots = slots.substr(0, slots.find_first_of(" \t"));
  } else {
    host.name = entry.substr(0, colon);
    if (colon != entry.npos) slots = entry.substr(colon + 1);
  }
  const bool said = space != entry.npos ? entry.find("slots=") != entry.npos : colon != entry.npos;
  const auto parsed = std::from_chars(slots.data(), slots.data() + slots.size(), host.slots);
  const bool number = parsed.ec == std::errc() && parsed.ptr == slots.data() + slots.size();
  if (host.name.empty() || (said && (!number || host.slots < 1))) {
    throw ValueError(
        fmt::format("{}: expected HOST:SLOTS, or a line `HOST slots=N`, not \"{}\"", source, entry));
  }
  if (host.name.starts_with('-')) {  // ssh would take it for a flag
    throw ValueError(fmt::format("{}: the name of a host cannot begin with '-': {}", source, host.name));
  }
  return host;
}

void add(std::vector<Host>& hosts, const Host& host) {
  const auto known =
      std::find_if(hosts.begin(), hosts.end(), [&](const Host& other) { return other.name == host.name; });
  if (known == hosts.end()) {
    hosts.push_back(host);
  } else {
    known->slots += host.slots;
  }
}

int number(const char* name, int64_t otherwise) {
  return static_cast<int>(env::get_int(name).value_or(otherwise));
}

/// MASTER_PORT, or `otherwise`.
uint16_t master_port(int otherwise) {
  const int port = number(env::kMasterPort, otherwise);
  if (port < 0 || port > 65535) {
    throw ValueError(
        fmt::format("environment variable {}={}: expected a port from 1 to 65535", env::kMasterPort, port));
  }
  return static_cast<uint16_t>(port);
}

/// The place of machine `rank` of `nodes`, which meet at MASTER_ADDR, where that is set, or at `point`.
std::optional<ClusterPlace> place_at(int rank, int nodes, const std::optional<job::MeetingPoint>& point,
                                     const char* launcher) {
  if (nodes == 1) return std::nullopt;
  const auto addr = env::get(env::kMasterAddr);
  if (!addr && !point) {
    throw ValueError(
        fmt::format("{} started a lockrun on each of {} machines, but does not say where the first one is; "
                    "give all of them --nnodes, --node-rank and --master-addr, or MASTER_ADDR in the "
                    "environment",
                    launcher, nodes));
  }
  ClusterPlace place;
  place.nodes = nodes;
  place.node_rank = rank;
  place.master_addr = addr ? *addr : point->host;
  place.master_port = master_port(point ? point->port : 0);
  return place;
}

/// `local`: lockruns of this launch on this machine.
void refuse_several(const char* launcher, int local, const char* one_per_machine) {
  if (local <= 1) return;
  throw ValueError(
      fmt::format("{} started {} lockruns on this machine; let {} start the program itself, or one lockrun "
                  "per machine ({})",
                  launcher, local, launcher, one_per_machine));
}

std::optional<ClusterPlace> place_by_mpirun() {
  refuse_several("mpirun", number(env::kOpenMpiLocalSize, 1), "--map-by ppr:1:node");
  return place_at(number(env::kOpenMpiRank, 0), number(env::kOpenMpiSize, 1), job::open_mpi_meeting_point(),
                  "mpirun");
}

std::optional<ClusterPlace> place_by_srun() {
  const int nodes = number(kSlurmStepNodes, 1), tasks = number(env::kSlurmStepTasks, nodes);
  refuse_several("srun", (tasks + nodes - 1) / nodes, "--ntasks-per-node=1");
  return place_at(number(env::kSlurmNodeId, 0), nodes, job::slurm_meeting_point(), "srun");
}

/// MPICH's and Intel MPI's.
std::optional<ClusterPlace> place_by_mpiexec() {
  refuse_several("mpiexec", number(env::kPmiLocalSize, 1), "-ppn 1");
  return place_at(number(env::kPmiRank, 0), number(env::kPmiSize, 1), std::nullopt, "mpiexec");
}

/// Kubeflow's operator numbers the pods where its PyTorchJob has a master. Newer ones set PET_NNODES and
/// others too, which are read as flags.
std::optional<ClusterPlace> place_by_pytorch_job() {
  if (env::get(env::kLocalRank) || !env::get(env::kRank) || !env::get(env::kMasterAddr)) return std::nullopt;
  return place_at(number(env::kRank, 0), number(env::kWorldSize, 1), std::nullopt, "PyTorchJob");
}

}  // namespace

std::optional<ClusterPlace> place_from_environment() {
  if (env::get(env::kOpenMpiSize)) return place_by_mpirun();
  if (env::get(env::kSlurmStepId) && env::get(kSlurmStepNodes)) return place_by_srun();
  if (env::get(env::kPmiSize) && env::get(env::kPmiLocalSize)) return place_by_mpiexec();
  if (env::get("KUBERNETES_SERVICE_HOST")) return place_by_pytorch_job();
  return std::nullopt;
}

std::optional<ClusterPlace> place_in_indexed_job(int nodes, const std::string& master_addr) {
  const auto index = env::get_int(kPodIndex);
  if (!index || nodes == 1) return std::nullopt;
  if (*index < 0 || *index >= nodes) {
    throw ValueError(
        fmt::format("environment variable {}={} is the number of this machine, and --nnodes is {}: expected "
                    "0 to {}; set the Job's completions to the same number, or give --node-rank",
                    kPodIndex, *index, nodes, nodes - 1));
  }
  ClusterPlace place;
  place.nodes = nodes;
  place.node_rank = static_cast<int>(*index);
  place.master_addr = !master_addr.empty() ? master_addr : env::get(env::kMasterAddr).value_or("");
  if (place.master_addr.empty()) {
    throw ValueError(
        "a Kubernetes Indexed Job does not say where its first pod is; give --master-addr JOB-0.SERVICE, "
        "where "
        "SERVICE is the headless service that the pods name as their subdomain, or MASTER_ADDR in the "
        "environment");
  }
  place.master_port = master_port(0);
  return place;
}

std::string unused_slurm_nodes() {
  const int nodes = number(kSlurmJobNodes, 1);
  if (nodes <= 1 || env::get(env::kSlurmStepId) || env::get(env::kOpenMpiSize) || env::get(env::kPmiSize)) {
    return "";
  }
  return fmt::format(
      "SLURM gave this job {} nodes, but all ranks run on this one: srun did not start "
      "lockrun; use srun --ntasks-per-node=1 lockrun ..., or give --standalone for one node",
      nodes);
}

std::vector<Host> parse_hosts(std::string_view text, const std::string& source) {
  const bool is_empty = text.empty();
  std::vector<Host> hosts;
  while (!text.empty()) {
    const size_t end = text.find_first_of(",\n");
    std::string_view entry = text.substr(0, end);
    entry = entry.substr(0, entry.find('#'));
    while (!entry.empty() && (entry.back() == ' ' || entry.back() == '\t' || entry.back() == '\r')) {
      entry.remove_suffix(1);
    }
    entry.remove_prefix(std::min(entry.find_first_not_of(" \t"), entry.size()));
    if (!entry.empty()) add(hosts, parse_host(entry, source));
    text = end == text.npos ? std::string_view() : text.substr(end + 1);
  }
  if (hosts.empty())
    throw ValueError(fmt::format("{}: names no host", is_empty ? said_value(source, "") : source));
  return hosts;
}

std::vector<Host> deal_ranks(std::vector<Host> hosts, int num_proc) {
  if (num_proc == 0) return hosts;
  int left = num_proc;
  size_t used = 0;
  for (; used < hosts.size() && left > 0; ++used) {
    hosts[used].slots = std::min(left, hosts[used].slots);
    left -= hosts[used].slots;
  }
  if (left > 0) {
    throw ValueError(fmt::format("--num-proc {}: the hosts have slots for {}; give fewer ranks or more slots",
                                 num_proc, num_proc - left));
  }
  hosts.resize(used);
  return hosts;
}

std::optional<size_t> find_host(const std::vector<Host>& hosts, const std::vector<std::string>& names) {
  for (size_t i = 0; i < hosts.size(); ++i) {
    const std::string name = hosts[i].name.substr(hosts[i].name.rfind('@') + 1);  // ssh's user@host
    if (std::find(names.begin(), names.end(), name) != names.end()) return i;
  }
  return std::nullopt;
}

}  // namespace lockstep::launcher
