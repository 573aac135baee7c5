#include "launcher/process/environment.h"

#include <algorithm>
#include <string_view>

#include "lockstep/timeline/parts_folder.h"

namespace lockstep::launcher {
namespace {

class Environment {
 public:
  explicit Environment(std::vector<std::string> entries) : entries_(std::move(entries)) {}

  void remove(std::string_view name) {
    std::erase_if(entries_, [&](const std::string& entry) { return names(entry, name); });
  }
  void set(std::string_view name, const std::string& value) {
    remove(name);
    entries_.push_back(std::string(name) + "=" + value);
  }
  void set(std::string_view name, int value) { set(name, std::to_string(value)); }
  void set_default(std::string_view name, const std::string& value) {
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const std::string& entry) { return names(entry, name); });
    if (found == entries_.end()) set(name, value);
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
  constexpr std::string_view name = "CUDA_VISIBLE_DEVICES=";
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

}  // namespace

std::string error_file(const JobEnvironment& job, int local_rank) {
  return job.directory + "/" + std::to_string(local_rank) + "/error.json";
}

std::vector<std::string> worker_environment(const std::vector<std::string>& inherited,
                                            const JobEnvironment& job, int local_rank) {
  const int rank = job.first_rank + local_rank;
  Environment environment(inherited);
  environment.set("RANK", rank);
  environment.set("LOCAL_RANK", job.virtual_local_rank ? 0 : local_rank);
  environment.remove("LOCKSTEP_LOCAL_RANK");
  if (job.virtual_local_rank) environment.set("LOCKSTEP_LOCAL_RANK", local_rank);
  if (job.virtual_local_rank) environment.set("CUDA_VISIBLE_DEVICES", visible_gpu(inherited, local_rank));
  environment.set("WORLD_SIZE", job.world_size);
  environment.set("LOCAL_WORLD_SIZE", job.local_world_size);
  environment.set("GROUP_RANK", job.group_rank);
  environment.set("GROUP_WORLD_SIZE", job.group_world_size);
  // All ranks of a job have one role here, so its numbers are the job's.
  environment.set("ROLE_RANK", rank);
  environment.set("ROLE_WORLD_SIZE", job.world_size);
  environment.set("ROLE_NAME", job.role);
  environment.set("MASTER_ADDR", job.master_addr);
  environment.set("MASTER_PORT", job.master_port);
  environment.set("TORCHELASTIC_RESTART_COUNT", job.restart_count);
  environment.set("TORCHELASTIC_MAX_RESTARTS", job.max_restarts);
  environment.set("TORCHELASTIC_RUN_ID", job.run_id);
  environment.set("TORCHELASTIC_USE_AGENT_STORE", "True");
  environment.set("TORCHELASTIC_SIGNALS_TO_HANDLE", job.signals);
  environment.set("TORCHELASTIC_ERROR_FILE", error_file(job, local_rank));
  environment.set_default("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  environment.set_default("OMP_NUM_THREADS", std::to_string(job.threads));
  environment.remove("LOCKSTEP_SEGMENT_FD");
  if (job.segment_fd) environment.set("LOCKSTEP_SEGMENT_FD", *job.segment_fd);
  environment.remove(timeline::kFolderVariable);
  if (!job.timeline_parts.empty()) environment.set(timeline::kFolderVariable, job.timeline_parts);
  environment.remove("LOCKSTEP_LOCAL_ADDR");
  if (!job.local_addr.empty()) environment.set("LOCKSTEP_LOCAL_ADDR", job.local_addr);
  if (!job.interface.empty()) {
    for (const char* name : {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}) {
      environment.set_default(name, job.interface);
    }
  }
  environment.remove("LOCKSTEP_TERMINAL_COLUMNS");
  if (job.terminal_columns) environment.set("LOCKSTEP_TERMINAL_COLUMNS", *job.terminal_columns);
  return environment.take();
}

}  // namespace lockstep::launcher
