// How far a training is: what changes from step to step beside the model, its optimizer and its schedule. For the sources of
// lockstep/trainer alone.
#pragma once

#include <cstdint>

#include "lockstep/state/state_dict.h"
#include "lockstep/trainer/callback.h"
#include "lockstep/trainer/checkpoints/best_model.h"
#include "lockstep/trainer/checkpoints/resume.h"
#include "lockstep/trainer/training_plan.h"

namespace lockstep::detail {

/// The parts of a training in the order in which they come. Each begins with a state that can be kept and handed over.
enum class RunPart : uint8_t {
  begin,        ///< callbacks begin; eval_on_start
  epoch_begin,  ///< its callbacks
  step,         ///< forward, backward, optimizer
  after_step,   ///< what is due behind it: log, evaluation, checkpoint
  epoch_end,    ///< and behind the epoch
  end,          ///< no step is left
};

/// A value.
struct RunProgress {
  BestModel best;
  TrainingPosition position{};
  RunPart part = RunPart::begin;
  TrainerControl control{};
  Progress progress{};
  Metrics evaluation{};          ///< the last one
  int64_t evaluation_step = -1;  ///< after which it was; -1: none, or of another model
  int64_t last_saved_step = -1;
  bool is_out_of_time = false;  ///< max_time has passed
  int signal = 0;               ///< that asks all ranks to stop
  double seconds_evaluating = 0;
  double start = 0;  ///< by monotonic_seconds()

  /// What follows the beginning of the training or the end of an epoch; what follows that of an epoch or a step.
  RunPart next_epoch(const TrainingPlan& plan) const;
  RunPart next_step(const TrainingPlan& plan) const;

  /// What is the same on all ranks.
  StateDict common() const;
  /// What each rank has measured for itself: times, and an evaluation with its speed.
  StateDict own() const;
  void load_common(const StateDict& state);
  /// control stays.
  void load_own(const StateDict& state);
};

}  // namespace lockstep::detail
