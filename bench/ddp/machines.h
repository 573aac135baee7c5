// `lockstep bench ddp --machines`: training steps over several machines, which this one plays.
#pragma once

#include "bench/ddp/contestants.h"

namespace lockstep::bench_ddp {

/// Returns the exit code. Throws ValueError for what cannot be measured, before anything is started, and Error.
int run_on_machines(const Options& options);

}  // namespace lockstep::bench_ddp
