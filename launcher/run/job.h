// A whole job: all attempts, and what lockrun says and returns in the end.
#pragma once

#include "launcher/cli/options.h"

namespace lockstep::launcher {

/// Runs the job and returns lockrun's exit code. Throws Error when it cannot be started.
int run_job(const Options& options, const Machine& machine);

}  // namespace lockstep::launcher
