#include "lockstep/optim/lr_scheduler.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/base/error.h"

namespace lockstep {

SchedulerType scheduler_type(const std::string& name) {
  if (name == "linear") return SchedulerType::linear;
  if (name == "cosine") return SchedulerType::cosine;
  if (name == "constant") return SchedulerType::constant;
  if (name == "constant_with_warmup") return SchedulerType::constant_with_warmup;
  throw ValueError("unknown lr scheduler type \"" + name +
                   "\", expected linear, cosine, constant or constant_with_warmup");
}

double lr_factor(SchedulerType type, int64_t step, int64_t num_warmup_steps, int64_t num_training_steps) {
  if (type == SchedulerType::constant) return 1;
  if (step < num_warmup_steps) {
    return static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, num_warmup_steps));
  }
  if (type == SchedulerType::constant_with_warmup) return 1;
  const auto span = static_cast<double>(std::max<int64_t>(1, num_training_steps - num_warmup_steps));
  if (type == SchedulerType::linear) {
    return std::max(0.0, static_cast<double>(num_training_steps - step) / span);
  }
  const double progress = static_cast<double>(step - num_warmup_steps) / span;
  return std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * progress)));
}

}  // namespace lockstep
