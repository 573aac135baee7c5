// The environment variables that a worker finds: torchrun's, and Lockstep's own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::launcher {

/// What all workers of one node share.
struct JobEnvironment {
  int local_world_size = 1;
  int group_rank = 0;        ///< number of this node
  int group_world_size = 1;  ///< nodes
  int first_rank = 0;        ///< rank of this node's local rank 0
  int world_size = 1;
  std::string role = "default";
  std::string run_id = "none";
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 0;
  int restart_count = 0;
  int max_restarts = 0;
  int threads = 1;                      ///< OMP_NUM_THREADS where it is unset
  std::optional<int> segment_fd;        ///< LOCKSTEP_SEGMENT_FD
  std::optional<int> terminal_columns;  ///< LOCKSTEP_TERMINAL_COLUMNS; none: lockrun's stderr is no terminal
  std::string directory;                ///< of this attempt: holds <local rank>/error.json
  bool virtual_local_rank = false;      ///< LOCAL_RANK=0 for all, and one GPU each
  std::string interface;                ///< network interface that the ranks are to use; empty: not said
  std::string timeline_parts;           ///< LOCKSTEP_TIMELINE_PARTS; empty: none
  std::string local_addr;               ///< LOCKSTEP_LOCAL_ADDR: this machine's address there
  std::string signals;                  ///< TORCHELASTIC_SIGNALS_TO_HANDLE: names with commas between
};

/// `inherited` ("NAME=value" entries) with the variables of local rank `local_rank` set in it.
std::vector<std::string> worker_environment(const std::vector<std::string>& inherited,
                                            const JobEnvironment& job, int local_rank);

/// Where the worker writes why it failed, in torchelastic's format.
std::string error_file(const JobEnvironment& job, int local_rank);

}  // namespace lockstep::launcher
