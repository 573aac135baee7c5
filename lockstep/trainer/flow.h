// When to log, evaluate and stop: transformers' DefaultFlowCallback, and Lightning's val_check_interval.
#pragma once

#include "lockstep/trainer/callback.h"
#include "lockstep/trainer/training_plan.h"

namespace lockstep {

/// The first of a Trainer's callbacks: sets the control flags that the arguments ask for. Pure.
class DefaultFlow : public TrainerCallback {
 public:
  explicit DefaultFlow(TrainingPlan plan) : plan_(plan) {}
  std::string name() const override { return "default_flow"; }
  void on_step_end(CallbackContext& context) override;
  void on_epoch_end(CallbackContext& context) override;

 private:
  TrainingPlan plan_;
};

}  // namespace lockstep
