// What is said at the start of a job whose ranks are not replaced when they die, though its launcher is to do that.
#pragma once

#include <fmt/format.h>

#include "lockstep/base/log.h"
#include "lockstep/job/launch_environment.h"

namespace lockstep {

/// Once a job. `is_wanted`: the launcher replaces ranks that can be. `why`: these cannot.
inline void warn_of_no_healing(const job::LaunchEnvironment& launch, bool is_wanted, const char* why) {
  if (launch.rank != 0 || launch.world_size < 2 || !is_wanted) return;
  log::warning(fmt::format("lockrun --max-replacements: ranks that die are not replaced, because {}", why));
}

}  // namespace lockstep
