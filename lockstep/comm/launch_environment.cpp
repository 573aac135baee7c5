#include "lockstep/comm/launch_environment.h"

#include <optional>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

int required(const char* name) {
  const auto value = env::get_int(name);
  if (!value) {
    throw ValueError(
        std::string("environment variable ") + name +
        " is missing while RANK is set; start with lockrun or torchrun, or unset RANK to run alone");
  }
  return static_cast<int>(*value);
}

void check(const char* name, int value, int limit) {
  if (value < 0 || value >= limit) {
    throw ValueError(std::string("environment variable ") + name + "=" + std::to_string(value) +
                     " must be 0 to " + std::to_string(limit - 1));
  }
}

}  // namespace

LaunchEnvironment LaunchEnvironment::from_env() {
  LaunchEnvironment launch;
  if (!env::get("RANK")) return launch;
  launch.alone = false;
  launch.rank = required("RANK");
  launch.world_size = required("WORLD_SIZE");
  launch.local_rank = static_cast<int>(env::get_int("LOCAL_RANK").value_or(launch.rank));
  launch.local_world_size = static_cast<int>(env::get_int("LOCAL_WORLD_SIZE").value_or(launch.world_size));
  launch.group_rank = static_cast<int>(env::get_int("GROUP_RANK").value_or(0));
  if (launch.world_size < 1) {
    throw ValueError("environment variable WORLD_SIZE=" + std::to_string(launch.world_size) +
                     " must be 1 or more");
  }
  check("RANK", launch.rank, launch.world_size);
  check("LOCAL_RANK", launch.local_rank, launch.local_world_size);
  if (launch.local_world_size > launch.world_size) {
    throw ValueError("environment variable LOCAL_WORLD_SIZE=" + std::to_string(launch.local_world_size) +
                     " is larger than WORLD_SIZE=" + std::to_string(launch.world_size));
  }
  if (const auto fd = env::get_int("LOCKSTEP_SEGMENT_FD")) launch.segment_fd = static_cast<int>(*fd);
  launch.master_addr = env::get("MASTER_ADDR").value_or("");
  launch.master_port = static_cast<int>(env::get_int("MASTER_PORT").value_or(0));
  launch.agent_store = env::get_bool("TORCHELASTIC_USE_AGENT_STORE").value_or(false);
  launch.restart_count = static_cast<int>(env::get_int("TORCHELASTIC_RESTART_COUNT").value_or(0));
  return launch;
}

}  // namespace lockstep
