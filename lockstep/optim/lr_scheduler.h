// Learning-rate schedulers for any optimizer of LibTorch's, the divided ones included.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "lockstep/comm/step_members.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/state/state_dict.h"

namespace lockstep {

/// Sets the learning rate of every parameter group to its initial one times lr_factor(), as transformers'
/// get_scheduler and torch's StepLR and MultiStepLR do: at construction for the first step, and in step(),
/// which is called after the optimizer's, for the next. It has no random state and talks to nobody: on several
/// ranks each has its own. A step (lockstep/step/step.h) that fails takes its own calls of step() back. The optimizer must
/// outlive it. One thread at a time.
///
///     lockstep::LRScheduler scheduler(optimizer, {.type = lockstep::SchedulerType::cosine,
///                                                 .num_warmup_steps = 100, .num_training_steps = 1000});
///     ...
///     optimizer.step();
///     scheduler.step();
class LRScheduler : private detail::StepMember {
 public:
  /// Throws ValueError for options that the type cannot use.
  LRScheduler(torch::optim::Optimizer& optimizer, LRScheduleOptions options);
  /// After each step of the optimizer: sets the learning rates for the next one.
  void step();
  /// The learning rates that were set last, one a group.
  std::vector<double> get_last_lr() const;
  /// The number of steps made.
  int64_t last_epoch() const { return last_epoch_; }

  /// The number of steps and the initial learning rates; the options are the constructor's.
  StateDict state_dict() const;
  /// Goes on from there, and sets the learning rates. Throws ValueError where the number of groups differs.
  void load_state_dict(const StateDict& state);

 private:
  void begin_step() override { before_step_ = last_epoch_; }
  void fail_step() override;
  void set_rates();
  torch::optim::Optimizer& optimizer_;
  LRScheduleOptions options_;
  double default_lr_;
  std::vector<double> base_lrs_;
  int64_t last_epoch_ = 0, before_step_ = 0;
};

/// torch.optim.lr_scheduler.ReduceLROnPlateau: multiplies the learning rates by `factor` when a metric has not
/// become better for more than `patience` calls of step(). On several ranks all must give it the same metric,
/// or their learning rates differ. A step (lockstep/step/step.h) that fails takes its own calls of step() back. The optimizer
/// must outlive it. One thread at a time.
class ReduceLROnPlateau : private detail::StepMember {
 public:
  /// Throws ValueError for a factor of 1 or more.
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer, ReduceLROnPlateauOptions options = {});
  /// After an evaluation. A metric that is not a number is no improvement.
  void step(double metric);
  /// The learning rates of the optimizer, one a group.
  std::vector<double> get_last_lr() const;

  /// The best metric and the counters, and the learning rates.
  StateDict state_dict() const;
  /// Goes on from there, and sets the learning rates. Throws ValueError where the number of groups differs.
  void load_state_dict(const StateDict& state);

 private:
  struct Counters {
    double best;
    int64_t num_bad_epochs = 0, cooldown_counter = 0, last_epoch = 0;
  };
  struct BeforeStep {
    Counters counters;
    std::vector<double> rates;
  };
  void begin_step() override { before_step_.reset(); }
  void commit_step() override { before_step_.reset(); }
  void fail_step() override;
  bool is_better(double metric) const;
  void reduce();
  torch::optim::Optimizer& optimizer_;
  ReduceLROnPlateauOptions options_;
  Counters counters_;
  std::optional<BeforeStep> before_step_{};  // of a step that has changed something
};

}  // namespace lockstep
