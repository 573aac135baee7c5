// What this machine offers to a job.
#pragma once

#include <string>

#include "launcher/cli/options.h"

namespace lockstep::launcher {

/// Cores that this process may use, and NVIDIA GPUs that it can see.
Machine inspect_machine();

/// Random identifier of a run.
std::string random_id();

}  // namespace lockstep::launcher
