// The learning rate of a training.
#pragma once

#include <torch/optim/optimizer.h>

#include <optional>

#include "lockstep/optim/lr_scheduler.h"
#include "lockstep/trainer/trainer_state.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep::detail {

/// By the number of steps, or with reduce_lr_on_plateau by what evaluations give.
class Schedule {
 public:
  /// Throws ValueError for options that the schedule cannot use. `optimizer` outlives it.
  Schedule(torch::optim::Optimizer& optimizer, const TrainingArguments& arguments, int64_t max_steps);
  /// The first parameter group's, for the next step.
  double learning_rate() const;
  /// After each step of the optimizer.
  void step();
  /// After each evaluation; it has the metric (note_best()).
  void evaluated(const Metrics& evaluation);

  /// One of the two; the other is null.
  LRScheduler* scheduler() { return scheduler_ ? &*scheduler_ : nullptr; }
  ReduceLROnPlateau* plateau() { return plateau_ ? &*plateau_ : nullptr; }

 private:
  const TrainingArguments& arguments_;
  std::optional<LRScheduler> scheduler_{};
  std::optional<ReduceLROnPlateau> plateau_{};
};

}  // namespace lockstep::detail
