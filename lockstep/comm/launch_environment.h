// What the launcher said about this process, as read from the environment.
#pragma once

#include <optional>
#include <string>

namespace lockstep {

struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int group_rank = 0;
  std::optional<int> segment_fd{};  ///< lockrun's shared segment
  std::string master_addr{};
  int master_port = 0;
  bool agent_store = false;  ///< the launcher serves the store: every rank is its client
  int restart_count = 0;
  bool alone = true;  ///< no launcher: a job of one

  /// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT,
  /// TORCHELASTIC_* and LOCKSTEP_SEGMENT_FD. Throws ValueError naming a variable that is missing or
  /// contradicts another.
  static LaunchEnvironment from_env();
};

}  // namespace lockstep
