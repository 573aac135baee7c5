#include "lockstep/job/launch_environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/job/address.h"
#include "lockstep/job/interface_choice.h"
#include "lockstep/job/meeting_point.h"
#include "lockstep/job/own_address.h"
#include "lockstep/job/spare.h"
#include "lockstep/timeline/parts_folder.h"

namespace lockstep::job {
namespace {

// Written and read here alone.
constexpr const char* kVirtualLocalRank =
    "LOCKSTEP_LOCAL_RANK";  // the true one, where LOCAL_RANK is 0 for all
constexpr const char* kLocalAddr = "LOCKSTEP_LOCAL_ADDR";
constexpr const char* kGroupRank = "GROUP_RANK";
constexpr const char* kGroupWorldSize = "GROUP_WORLD_SIZE";
constexpr const char* kRoleName = "ROLE_NAME";
constexpr const char* kMaxRestarts = "TORCHELASTIC_MAX_RESTARTS";
constexpr const char* kRunId = "TORCHELASTIC_RUN_ID";
constexpr const char* kAgentStore = "TORCHELASTIC_USE_AGENT_STORE";

/// The whole number in `name`, which `because` makes necessary.
int required(const char* name, const char* because) {
  const auto value = env::get_int(name);
  if (!value) {
    throw ValueError(fmt::format(
        "environment variable {} is missing while {} is set; start with lockrun, torchrun, mpirun or "
        "srun, or unset {} to run alone",
        name, because, because));
  }
  return static_cast<int>(*value);
}

int number(const char* name, int otherwise) {
  return static_cast<int>(env::get_int(name).value_or(otherwise));
}

void check(const char* name, int value, int limit) {
  if (value < 0 || value >= limit) {
    throw ValueError(fmt::format("environment variable {}={} must be 0 to {}", name, value, limit - 1));
  }
}

/// How a family of launchers names what all of them tell.
struct Names {
  const char *rank, *size, *local_rank, *local_size;
};
constexpr Names kTorchrun{env::kRank, env::kWorldSize, env::kLocalRank, env::kLocalWorldSize};
constexpr Names kOpenMpi{env::kOpenMpiRank, env::kOpenMpiSize, "OMPI_COMM_WORLD_LOCAL_RANK",
                         env::kOpenMpiLocalSize};
constexpr Names kPmi{env::kPmiRank, env::kPmiSize, "MPI_LOCALRANKID", env::kPmiLocalSize};
constexpr Names kSlurm{"SLURM_PROCID", env::kSlurmStepTasks, "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"};

/// Entry `node` of SLURM's "2(x3),1".
int tasks_on_node(const std::string& text, int node) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string entry = text.substr(at, end - at);
    const size_t times = entry.find("(x");
    const int count = std::atoi(entry.c_str());
    const int nodes = times == std::string::npos ? 1 : std::atoi(entry.c_str() + times + 2);
    if (node < nodes && count > 0) return count;
    node -= nodes;
    at = end + 1;
  }
  throw ValueError(
      fmt::format("environment variable {}={} says nothing of this node", kSlurm.local_size, text));
}

void read(LaunchEnvironment& launch, const Names& names) {
  launch.alone = false;
  launch.rank = required(names.rank, names.rank);
  launch.world_size = required(names.size, names.rank);
  launch.local_rank = number(names.local_rank, launch.rank);
  launch.local_world_size =
      names.local_size == kSlurm.local_size ? 0 : number(names.local_size, launch.world_size);
  if (launch.world_size < 1) {
    throw ValueError(
        fmt::format("environment variable {}={} must be 1 or more", names.size, launch.world_size));
  }
  check(names.rank, launch.rank, launch.world_size);
  if (names.local_size == kSlurm.local_size) {
    launch.knows_group_rank = env::get(env::kSlurmNodeId).has_value();
    launch.group_rank = number(env::kSlurmNodeId, 0);
    const auto per_node = env::get(names.local_size);
    launch.local_world_size = per_node ? tasks_on_node(*per_node, launch.group_rank) : launch.world_size;
  }
  check(names.local_rank, launch.local_rank, launch.local_world_size);
  if (launch.local_world_size > launch.world_size) {
    throw ValueError(fmt::format("environment variable {}={} is larger than {}={}", names.local_size,
                                 launch.local_world_size, names.size, launch.world_size));
  }
}

/// Whose segment is handed down beside this.
std::string segment_owner(const LaunchEnvironment& launch) {
  return fmt::format("{}/{}@{}", launch.rank, launch.world_size, launch.master_port);
}

/// Several jobs may run on one node: by the launcher's own name for this one or, without, by who started it.
std::string name_of_job() {
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", env::kOpenMpiUri}) {
    if (const auto id = env::get(name)) return fmt::format("{}={}", name, *id);
  }
  if (const auto job = env::get(env::kSlurmJobId)) {
    return fmt::format("SLURM={}.{}", *job, env::get(env::kSlurmStepId).value_or(""));
  }
  return fmt::format("parent={}", ::getppid());
}

/// "NAME=value" entries.
class Entries {
 public:
  explicit Entries(std::vector<std::string> entries) : entries_(std::move(entries)) {}

  void remove(std::string_view name) {
    std::erase_if(entries_, [&](const std::string& entry) { return names(entry, name); });
  }
  void set(std::string_view name, const std::string& value) {
    remove(name);
    entries_.push_back(fmt::format("{}={}", name, value));
  }
  std::string value_of(std::string_view name) const {
    for (const std::string& entry : entries_) {
      if (names(entry, name)) return entry.substr(name.size() + 1);
    }
    return {};
  }
  void set(std::string_view name, int value) { set(name, std::to_string(value)); }
  void set_default(std::string_view name, const std::string& value) {
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const std::string& entry) { return names(entry, name); });
    if (found == entries_.end()) set(name, value);
  }
  /// `value`, or no such variable.
  void set_or_remove(std::string_view name, const std::string& value) {
    remove(name);
    if (!value.empty()) entries_.push_back(fmt::format("{}={}", name, value));
  }
  void set_or_remove(std::string_view name, std::optional<int> value) {
    set_or_remove(name, value ? std::to_string(*value) : "");
  }
  std::vector<std::string> take() { return std::move(entries_); }

 private:
  static bool names(std::string_view entry, std::string_view name) {
    return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=';
  }
  std::vector<std::string> entries_;
};

/// The entry of CUDA_VISIBLE_DEVICES for a local rank, as torchrun chooses it.
std::string visible_gpu(const std::vector<std::string>& inherited, int local_rank) {
  const std::string name = std::string(env::kCudaVisibleDevices) + "=";
  for (const std::string& entry : inherited) {
    if (!entry.starts_with(name)) continue;
    std::string_view list = std::string_view(entry).substr(name.size());
    for (int i = 0; i < local_rank && !list.empty(); ++i) {
      const size_t comma = list.find(',');
      list = comma == list.npos ? std::string_view() : list.substr(comma + 1);
    }
    if (!list.empty()) return std::string(list.substr(0, list.find(',')));
  }
  return std::to_string(local_rank);
}

/// Several nodes meet where their launcher says, unless MASTER_ADDR says it.
void meet_at(LaunchEnvironment& launch, const std::optional<MeetingPoint>& point) {
  if (!launch.master_addr.empty() || launch.world_size == launch.local_world_size || !point) return;
  launch.master_addr = point->host;
  if (launch.master_port == 0) launch.master_port = point->port;
}

}  // namespace

LaunchEnvironment LaunchEnvironment::from_env() {
  if (is_spare()) throw ValueError("this process is a spare of lockrun's, which has no rank before init()");
  LaunchEnvironment launch;
  launch.master_addr = env::get(env::kMasterAddr).value_or("");
  launch.master_port = number(env::kMasterPort, 0);
  if (env::get(kTorchrun.rank)) {
    read(launch, kTorchrun);
    // With lockrun --virtual-local-rank every LOCAL_RANK is 0.
    if (const auto local = env::get_int(kVirtualLocalRank)) launch.local_rank = static_cast<int>(*local);
    launch.local_addr = env::get(kLocalAddr).value_or("");
    launch.knows_group_rank = env::get(kGroupRank).has_value();
    launch.group_rank = number(kGroupRank, 0);
    launch.accept_segment(env::get_int(env::kSegmentFd), env::get(env::kSegmentOwner));
    launch.agent_store = env::get_bool(kAgentStore).value_or(false);
    launch.group_world_size = number(kGroupWorldSize, 1);
    launch.role = env::get(kRoleName).value_or(launch.role);
    launch.max_restarts = number(kMaxRestarts, 0);
    launch.restart_count = number(env::kRestartCount, 0);
    launch.run_id = env::get(kRunId).value_or(launch.run_id);
    launch.error_file = env::get(env::kErrorFile).value_or("");
    launch.timeline_parts = env::get(timeline::kFolderVariable).value_or("");
    return launch;
  }
  if (env::get(kOpenMpi.rank)) {
    read(launch, kOpenMpi);
    meet_at(launch, open_mpi_meeting_point());
  } else if (env::get(kSlurm.size) && env::get(kSlurm.rank)) {
    // SLURM_PROCID alone also stands in a batch script that srun did not start: that is a job of one.
    read(launch, kSlurm);
    meet_at(launch, slurm_meeting_point());
  } else if (env::get(kPmi.rank)) {
    read(launch, kPmi);
  }
  if (!launch.alone) launch.job_key = name_of_job();
  return launch;
}

LaunchEnvironment LaunchEnvironment::of_local_rank(int other) const {
  LaunchEnvironment told = *this;
  told.rank += other - local_rank;
  told.local_rank = other;
  return told;
}

void LaunchEnvironment::accept_segment(std::optional<int64_t> fd, const std::optional<std::string>& owner) {
  if (fd && (!owner || *owner == segment_owner(*this))) segment_fd = static_cast<int>(*fd);
}

std::vector<std::string> LaunchEnvironment::to_env(const std::vector<std::string>& inherited) const {
  Entries entries(inherited);
  entries.set(env::kRank, rank);
  entries.set(env::kLocalRank, virtual_local_rank ? 0 : local_rank);
  entries.set_or_remove(kVirtualLocalRank, virtual_local_rank ? std::optional(local_rank) : std::nullopt);
  if (virtual_local_rank) entries.set(env::kCudaVisibleDevices, visible_gpu(inherited, local_rank));
  entries.set(env::kWorldSize, world_size);
  entries.set(env::kLocalWorldSize, local_world_size);
  entries.set(kGroupRank, group_rank);
  entries.set(kGroupWorldSize, group_world_size);
  // All ranks of a job have one role here, so its numbers are the job's.
  entries.set("ROLE_RANK", rank);
  entries.set("ROLE_WORLD_SIZE", world_size);
  entries.set(kRoleName, role);
  entries.set(env::kMasterAddr, master_addr);
  entries.set(env::kMasterPort, master_port);
  entries.set(env::kRestartCount, restart_count);
  entries.set(kMaxRestarts, max_restarts);
  entries.set(kRunId, run_id);
  entries.set(kAgentStore, agent_store ? "True" : "False");
  entries.set_or_remove("TORCHELASTIC_SIGNALS_TO_HANDLE", signals);
  entries.set_or_remove(env::kErrorFile, error_file);
  entries.set_default("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (threads > 0) entries.set_default(env::kOmpNumThreads, std::to_string(threads));
  entries.set_or_remove(env::kSegmentFd, segment_fd);
  entries.set_or_remove(env::kSegmentOwner, segment_fd ? segment_owner(*this) : "");
  entries.set_or_remove(timeline::kFolderVariable, timeline_parts);
  entries.set_or_remove(kLocalAddr, local_addr);
  if (!interface.empty()) {
    for (const char* name : {env::kGlooInterface, "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}) {
      entries.set_default(name, interface);
    }
  }
  // Gloo in Python knows names of interfaces only.
  if (const std::string rule = entries.value_of(env::kGlooInterface); !is_plain_interface_list(rule)) {
    std::vector<std::string> names;
    if (!interface.empty()) names.push_back(interface);
    // A rule that excludes some others does not mean loopback.
    for (const bool loopback : {false, true}) {
      for (const Interface& one : interfaces()) {
        if (is_loopback(one.address.host()) == loopback) names.push_back(one.name);
      }
    }
    const auto allowed = allowed_interfaces(rule, names);
    if (!allowed.empty()) entries.set(env::kGlooInterface, allowed.front());
  }
  entries.set_or_remove(env::kTerminal, terminal);
  entries.set_or_remove(env::kTerminalColumns, terminal_columns);
  return entries.take();
}

}  // namespace lockstep::job
