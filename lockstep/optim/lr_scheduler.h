// Learning-rate schedules with warm-up, by transformers' names and formulas.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

/// transformers' SchedulerType: "linear", "cosine", "constant" (no warm-up), "constant_with_warmup".
enum class SchedulerType { linear, cosine, constant, constant_with_warmup };

/// Throws ValueError naming the known types.
SchedulerType scheduler_type(const std::string& name);

/// Factor of the learning rate for the step after `step` finished optimizer steps (0 for the first), as
/// transformers.get_scheduler's.
double lr_factor(SchedulerType type, int64_t step, int64_t num_warmup_steps, int64_t num_training_steps);

}  // namespace lockstep
