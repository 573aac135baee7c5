// What a run says when it is done. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/trainer/trainer_state.h"

namespace lockstep {

/// Adds `<split>_runtime` (s), `<split>_samples_per_second` and `<split>_steps_per_second`: Hugging Face's
/// speed_metrics, with its rounding. Without a step there is no rate.
void add_speed(Metrics& metrics, const std::string& split, double runtime, double samples, double steps);

/// The results of splits as a table, a line each behind one of names, two spaces before it:
///
///            loss  accuracy      f1  samples/s
///     train  0.4523                      101.9
///     eval   0.4100    0.8824  0.8800     410.3
///
/// Each: as Trainer::train, evaluate and predict return it, with the split's name as prefix. Loss first, then by
/// name; a dash for a split without a rate. Empty for no splits.
std::string summary_table(const std::vector<std::pair<std::string, Metrics>>& splits);

/// "39 steps, 3 epochs in 0:12"; of a run that was resumed after `first_step`, "39 steps, 3 epochs; steps 27 to 39 in
/// 0:12", or "39 steps, 3 epochs; nothing was left to train".
std::string length_of_run(const TrainerState& state, int64_t first_step, double seconds);

}  // namespace lockstep
