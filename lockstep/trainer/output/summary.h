// What a run says when it is done. Pure.
#pragma once

#include <string>

#include "lockstep/trainer/trainer_state.h"

namespace lockstep {

/// Adds <split>_runtime (s), <split>_samples_per_second and <split>_steps_per_second: Hugging Face's
/// speed_metrics, with its rounding.
void add_speed(Metrics& metrics, const std::string& split, double runtime, double samples, double steps);

/// The results of one split as a line: "eval   loss 0.4100  accuracy 0.8824  f1 0.8800  (103.2 samples/s)".
/// `metrics`: as Trainer::train, evaluate and predict return them, with the prefix `split`. Loss first, then
/// by name.
std::string summary_line(const std::string& split, const Metrics& metrics);

/// "39 steps, 3 epochs in 0:12".
std::string length_of_run(const TrainerState& state, double seconds);

}  // namespace lockstep
