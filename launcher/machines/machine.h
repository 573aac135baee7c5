// What this machine offers to a job.
#pragma once

#include <string>

#include "launcher/cli/options.h"

namespace lockstep::launcher {

/// Cores that this process may use, and NVIDIA GPUs that it can see.
Machine inspect_machine();

/// This machine's name as it is set, without a domain that is looked up. "localhost" if it has none.
std::string host_name();

/// Random identifier of a run.
std::string random_id();

}  // namespace lockstep::launcher
