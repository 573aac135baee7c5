// Averaging the models themselves now and then, in place of their gradients at every step.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/step_value.h"

namespace lockstep {

/// What averages a model's parameters over ranks, now and then. One thread at a time.
class ModelAverager {
 public:
  virtual ~ModelAverager() = default;

  /// Once per step, after the optimizer's: where this step is one to average at, those of `parameters` that
  /// have a gradient become the average over the ranks, in place. A rank that is no member of the group keeps
  /// its own. Blocks.
  void average_parameters(const std::vector<at::Tensor>& parameters);
  /// Averages the parameters of all groups of an optimizer in the same way.
  void average_parameters(const torch::optim::Optimizer& optimizer);

  detail::StepValue<int64_t> step{
      0};  ///< calls so far, but for those of failed steps; to be saved with a checkpoint

 protected:
  /// The group that averages at step `now`; nothing: none does.
  virtual std::optional<ProcessGroup> group_at(int64_t now) const = 0;
};

/// Names, meanings and defaults are those of Python's PeriodicModelAverager.
class PeriodicModelAverager : public ModelAverager {
 public:
  /// `period`: steps per averaging; `warmup_steps`: steps before the first. Without a group: all ranks.
  /// Throws ValueError for a period below 1 and warmup_steps below 0.
  explicit PeriodicModelAverager(int64_t period, int64_t warmup_steps = 0,
                                 std::optional<ProcessGroup> process_group = std::nullopt);

 private:
  std::optional<ProcessGroup> group_at(int64_t now) const override;

  int64_t period_, warmup_steps_;
  ProcessGroup group_;
};

/// Names and meanings are those of Python's HierarchicalModelAverager: groups of ranks that grow with the
/// period at which they average (hierarchical SGD, Lin et al., arXiv 2010.12998). At a step that several
/// periods divide, the largest one's group averages.
///
///     // Blocks of 8 ranks every 4 steps, all 16 every 16 steps.
///     lockstep::HierarchicalModelAverager averager({{4, 8}, {16, 16}}, 100);
///     // The ranks of each machine every 4 steps, however many they are, all 6 every 16 steps.
///     lockstep::HierarchicalModelAverager averager({{4, HierarchicalModelAverager::kMachine}, {16, 6}}, 100);
class HierarchicalModelAverager : public ModelAverager {
 public:
  /// In place of a number of ranks: those that share a machine, as all ranks of the job agree.
  static constexpr int kMachine = 0;

  /// `period_group_size_dict`: (period in steps, ranks of a group), the periods ascending; the last group is
  /// all of `process_group` (default: all ranks), whose size the others divide, or kMachine. Groups are made here,
  /// of consecutive ranks: blocks until all ranks are there. Throws ValueError for another list and for
  /// warmup_steps below 0.
  explicit HierarchicalModelAverager(const std::vector<std::pair<int64_t, int>>& period_group_size_dict,
                                     int64_t warmup_steps = 0,
                                     const std::optional<ProcessGroup>& process_group = std::nullopt);

 private:
  std::optional<ProcessGroup> group_at(int64_t now) const override;

  std::vector<std::pair<int64_t, ProcessGroup>> groups_;  // by period
  int64_t warmup_steps_;
};

/// An optimizer whose parameters `averager` averages after its steps, as Python's PostLocalSGDOptimizer.
class PostLocalSGDOptimizer {
 public:
  /// `averager`: a PeriodicModelAverager, a HierarchicalModelAverager or another ModelAverager, which is moved.
  template <class Averager>
  PostLocalSGDOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, Averager averager)
      : optimizer_(std::move(optimizer)), averager_(std::make_shared<Averager>(std::move(averager))) {}

  /// The optimizer's step, then the averaging where one is due. On all ranks; blocks where it averages.
  void step();
  /// The optimizer's.
  void zero_grad(bool set_to_none = true) { optimizer_->zero_grad(set_to_none); }
  /// Its save() and load() keep the optimizer's state; averager().step belongs beside it.
  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  /// The averager; its `step` is to be saved.
  ModelAverager& averager() { return *averager_; }

 private:
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<ModelAverager> averager_;
};

}  // namespace lockstep
