#include "lockstep/trainer/flow.h"

#include <algorithm>

namespace lockstep {

void DefaultFlow::on_step_end(CallbackContext& context) {
  const auto& args = context.args;
  const int64_t step = context.state.global_step;
  const bool is_last = step >= plan_.max_steps;
  auto& control = context.control;
  const auto every = [&](int64_t interval) { return step % interval == 0; };
  if (args.logging_first_step && step == 1) control.should_log = true;
  if (args.logging_strategy == IntervalStrategy::STEPS && every(context.state.logging_steps)) {
    control.should_log = true;
  }
  if (args.eval_strategy == IntervalStrategy::STEPS && (every(context.state.eval_steps) || is_last) &&
      static_cast<double>(step) >= args.eval_delay) {
    control.should_evaluate = true;
  }
  if (args.val_check_interval > 0) {
    const int64_t in_epoch = (step - 1) % plan_.update_steps_per_epoch + 1;
    const auto interval =
        std::max<int64_t>(1, args.val_check_interval <= 1
                                 ? static_cast<int64_t>(args.val_check_interval *
                                                        static_cast<double>(plan_.update_steps_per_epoch))
                                 : static_cast<int64_t>(args.val_check_interval));
    if ((args.val_check_interval <= 1 ? in_epoch : step) % interval == 0) control.should_evaluate = true;
  }
  if (args.fast_dev_run > 0 && is_last && args.eval_strategy != IntervalStrategy::EPOCH) {
    control.should_evaluate = true;
  }
  if (args.save_strategy == SaveStrategy::STEPS && args.saves() &&
      (every(context.state.save_steps) || is_last)) {
    control.should_save = true;
  }
  if (is_last) control.should_training_stop = true;
}

void DefaultFlow::on_epoch_end(CallbackContext& context) {
  const auto& args = context.args;
  if (args.logging_strategy == IntervalStrategy::EPOCH) context.control.should_log = true;
  if (args.eval_strategy == IntervalStrategy::EPOCH && context.state.epoch >= args.eval_delay) {
    context.control.should_evaluate = true;
  }
  if (args.save_strategy == SaveStrategy::EPOCH && args.saves()) context.control.should_save = true;
}

}  // namespace lockstep
