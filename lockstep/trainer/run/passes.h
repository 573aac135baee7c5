// Forward and backward of a step.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/trainer/run/epoch_data.h"
#include "lockstep/trainer/run/step_sums.h"
#include "lockstep/trainer/step_engine.h"

namespace lockstep::detail {

/// What the passes of one step need to know.
struct PassOptions {
  uint64_t step = 0;         ///< its number, from 0
  int64_t step_samples = 1;  ///< of all ranks together
  uint64_t seed = 42;        ///< of the random numbers
  int rank = 0;              ///< of the process; logical ranks have their own numbers
  bool bf16 = false;
  /// After each pass of this process but its last. May be empty.
  std::function<void()> on_substep_end{};
};

/// Runs forward and backward of a step's micro-batches. Gradients are left as those of the sum of the losses over
/// step_samples: if losses are counted by sample, that is already what the optimizer wants. Returns loss, count and
/// tokens of this process. Called by all ranks; blocks.
StepSums run_passes(StepEngine& engine, std::vector<RankStep> steps, const PassOptions& options);

}  // namespace lockstep::detail
