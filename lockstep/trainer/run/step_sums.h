// What the ranks add up once a step.
#pragma once

#include "lockstep/trainer/checkpoints/checkpointing.h"

namespace lockstep::detail {

/// What one process has found in a step; after the all-reduce, what all have. Doubles alone (sums.h).
struct StepSums {
  double loss = 0, count = 0;  ///< the losses' sum, and what it is over (loss.h)
  double out_of_time = 0;      ///< processes whose time is over
  double interrupted = 0;      ///< processes that SIGINT asks to stop
  double warned = 0;           ///< processes that SIGUSR1 asks to stop
  double terminated = 0;       ///< processes that SIGTERM asks to stop
  CheckpointVotes checkpoint{};
  double tokens = 0;
};

}  // namespace lockstep::detail
