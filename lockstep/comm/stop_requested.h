// Whether the ranks are to save their work and end: they agree on it.
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/job/stop_signals.h"

namespace lockstep {

/// The signal by which any rank of `group` was asked to stop (stop_signals.h), the same on all of them, or 0.
/// SLURM and others signal the ranks one after another, so each alone would save another step. The first call
/// begins to catch the signals, for good. Called by all ranks, at the end of a step; blocks for one all-reduce
/// of 8 bytes. Throws CommError.
///
///     optimizer.step();
///     if (const int signal = lockstep::stop_requested(world)) {
///       save();
///       return lockstep::stop_exit_code(signal);
///     }
int stop_requested(const ProcessGroup& group);

}  // namespace lockstep
