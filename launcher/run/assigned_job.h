// The side of a lockrun that another one, on another machine, has started.
#pragma once

#include "launcher/cli/options.h"

namespace lockstep::launcher {

/// Takes the assignment that standard input brings, and does what it says. From then on a process of its own
/// listens to standard input: it passes signals on and kills this one when the other lockrun has died.
/// Returns the exit code. Throws Error when no assignment comes.
int run_assigned_job(const Machine& machine);

}  // namespace lockstep::launcher
