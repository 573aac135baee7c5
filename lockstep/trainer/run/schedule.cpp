#include "lockstep/trainer/run/schedule.h"

namespace lockstep::detail {

Schedule::Schedule(torch::optim::Optimizer& optimizer, const TrainingArguments& arguments, int64_t max_steps)
    : arguments_(arguments) {
  if (arguments.reduces_lr_on_plateau()) {
    auto options = arguments.plateau_options();
    options.mode = arguments.best_metric_is_greatest() ? ReduceLROnPlateauOptions::Mode::max
                                                       : ReduceLROnPlateauOptions::Mode::min;
    plateau_.emplace(optimizer, options);
  } else {
    scheduler_.emplace(optimizer, arguments.lr_schedule(max_steps));
  }
}

double Schedule::learning_rate() const {
  return scheduler_ ? scheduler_->get_last_lr().front() : plateau_->get_last_lr().front();
}

void Schedule::step() {
  if (scheduler_) scheduler_->step();
}

void Schedule::evaluated(const Metrics& evaluation) {
  if (plateau_) plateau_->step(evaluation.at(arguments_.best_metric()));
}

}  // namespace lockstep::detail
