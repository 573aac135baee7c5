// Averaging the models themselves now and then, in place of their gradients at every step.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Names, meanings and defaults are those of Python's PeriodicModelAverager. One thread at a time.
class PeriodicModelAverager {
 public:
  /// `period`: steps per averaging; `warmup_steps`: steps before the first. Without a group: all ranks.
  /// Throws ValueError for a period below 1 and warmup_steps below 0.
  explicit PeriodicModelAverager(int64_t period, int64_t warmup_steps = 0,
                                 std::optional<ProcessGroup> process_group = std::nullopt);

  /// Once per step, after the optimizer's: every `period` steps, those of `parameters` that have a gradient
  /// become the average over the ranks, in place. A rank that is no member of the group keeps its own.
  /// Blocks.
  void average_parameters(const std::vector<at::Tensor>& parameters);
  /// The same for the parameters of all groups of an optimizer.
  void average_parameters(const torch::optim::Optimizer& optimizer);

  int64_t step = 0;  ///< calls so far; to be saved with a checkpoint

 private:
  int64_t period_, warmup_steps_;
  std::optional<ProcessGroup> group_;
};

/// An optimizer whose parameters `averager` averages after its steps, as Python's PostLocalSGDOptimizer.
class PostLocalSGDOptimizer {
 public:
  PostLocalSGDOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, PeriodicModelAverager averager)
      : optimizer_(std::move(optimizer)), averager_(std::move(averager)) {}

  void step();
  void zero_grad(bool set_to_none = true) { optimizer_->zero_grad(set_to_none); }
  /// Its save() and load() keep the optimizer's state; averager().step belongs beside it.
  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  PeriodicModelAverager& averager() { return averager_; }

 private:
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  PeriodicModelAverager averager_;
};

}  // namespace lockstep
