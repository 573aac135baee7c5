// What this machine offers to a job.
#pragma once

#include <string>

#include "launcher/cli/options.h"

namespace lockstep::launcher {

/// Cores that this process may use, and NVIDIA GPUs that it can see.
Machine inspect_machine();

/// This machine's name, as hostname prints it: without a domain that is looked up.
std::string host_name();

/// Random identifier of a run.
std::string random_id();

}  // namespace lockstep::launcher
