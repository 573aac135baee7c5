#include "lockstep/comm/launch_environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include <optional>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/meeting_point.h"

namespace lockstep {
namespace {

/// The whole number in `name`, which `because` makes necessary.
int required(const char* name, const char* because) {
  const auto value = env::get_int(name);
  if (!value) {
    throw ValueError(std::string("environment variable ") + name + " is missing while " + because +
                     " is set; start with lockrun, torchrun, mpirun or srun, or unset " + because +
                     " to run alone");
  }
  return static_cast<int>(*value);
}

int number(const char* name, int otherwise) {
  return static_cast<int>(env::get_int(name).value_or(otherwise));
}

void check(const char* name, int value, int limit) {
  if (value < 0 || value >= limit) {
    throw ValueError(std::string("environment variable ") + name + "=" + std::to_string(value) +
                     " must be 0 to " + std::to_string(limit - 1));
  }
}

/// How a family of launchers names what all of them tell.
struct Names {
  const char *rank, *size, *local_rank, *local_size;
};
constexpr Names kTorchrun{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                         "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kPmi{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Names kSlurm{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"};

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
  throw ValueError("environment variable SLURM_STEP_TASKS_PER_NODE=" + text + " says nothing of this node");
}

void read(LaunchEnvironment& launch, const Names& names) {
  launch.alone = false;
  launch.rank = required(names.rank, names.rank);
  launch.world_size = required(names.size, names.rank);
  launch.local_rank = number(names.local_rank, launch.rank);
  launch.local_world_size =
      names.local_size == kSlurm.local_size ? 0 : number(names.local_size, launch.world_size);
  if (launch.world_size < 1) {
    throw ValueError(std::string("environment variable ") + names.size + "=" +
                     std::to_string(launch.world_size) + " must be 1 or more");
  }
  check(names.rank, launch.rank, launch.world_size);
  if (names.local_size == kSlurm.local_size) {
    launch.group_rank = number("SLURM_NODEID", 0);
    const auto per_node = env::get(names.local_size);
    launch.local_world_size = per_node ? tasks_on_node(*per_node, launch.group_rank) : launch.world_size;
  }
  check(names.local_rank, launch.local_rank, launch.local_world_size);
  if (launch.local_world_size > launch.world_size) {
    throw ValueError(std::string("environment variable ") + names.local_size + "=" +
                     std::to_string(launch.local_world_size) + " is larger than " + names.size + "=" +
                     std::to_string(launch.world_size));
  }
}

/// Several jobs may run on one node: by the launcher's own name for this one or, without, by who started it.
std::string name_of_job() {
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"}) {
    if (const auto id = env::get(name)) return std::string(name) + "=" + *id;
  }
  if (const auto job = env::get("SLURM_JOB_ID")) {
    return "SLURM=" + *job + "." + env::get("SLURM_STEP_ID").value_or("");
  }
  return "parent=" + std::to_string(::getppid());
}

/// Several nodes meet where their launcher says, unless MASTER_ADDR says it.
void meet_at(LaunchEnvironment& launch, const std::optional<MeetingPoint>& point) {
  if (!launch.master_addr.empty() || launch.world_size == launch.local_world_size || !point) return;
  launch.master_addr = point->host;
  if (launch.master_port == 0) launch.master_port = point->port;
}

}  // namespace

LaunchEnvironment LaunchEnvironment::from_env() {
  LaunchEnvironment launch;
  launch.master_addr = env::get("MASTER_ADDR").value_or("");
  launch.master_port = number("MASTER_PORT", 0);
  if (env::get(kTorchrun.rank)) {
    read(launch, kTorchrun);
    // With lockrun --virtual-local-rank every LOCAL_RANK is 0.
    if (const auto local = env::get_int("LOCKSTEP_LOCAL_RANK")) launch.local_rank = static_cast<int>(*local);
    launch.local_addr = env::get("LOCKSTEP_LOCAL_ADDR").value_or("");
    launch.group_rank = number("GROUP_RANK", 0);
    if (const auto fd = env::get_int("LOCKSTEP_SEGMENT_FD")) launch.segment_fd = static_cast<int>(*fd);
    launch.agent_store = env::get_bool("TORCHELASTIC_USE_AGENT_STORE").value_or(false);
    launch.restart_count = number("TORCHELASTIC_RESTART_COUNT", 0);
    return launch;
  }
  if (env::get(kOpenMpi.rank)) {
    read(launch, kOpenMpi);
    launch.group_rank = launch.rank / launch.local_world_size;
    meet_at(launch, open_mpi_meeting_point());
  } else if (env::get(kSlurm.size) && env::get(kSlurm.rank)) {
    // SLURM_PROCID alone also stands in a batch script that srun did not start: that is a job of one.
    read(launch, kSlurm);
    meet_at(launch, slurm_meeting_point());
  } else if (env::get(kPmi.rank)) {
    read(launch, kPmi);
    launch.group_rank = launch.rank / launch.local_world_size;
  }
  if (!launch.alone) launch.job_key = name_of_job();
  return launch;
}

}  // namespace lockstep
