#include "lockstep/trainer/checkpoints/best_model.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

bool note_best(TrainerState& state, const TrainingArguments& arguments, const Metrics& evaluation) {
  const auto found = evaluation.find(arguments.best_metric());
  if (found == evaluation.end()) {
    const bool is_needed = arguments.load_best_model_at_end ||
                           arguments.save_strategy == SaveStrategy::BEST || arguments.reduces_lr_on_plateau();
    if (!is_needed) return false;
    throw ValueError(fmt::format("metric_for_best_model is {}, which the evaluation does not give",
                                 arguments.best_metric()));
  }
  const double value = found->second;
  if (std::isnan(value)) return false;
  if (state.best_metric &&
      (arguments.best_metric_is_greatest() ? value <= *state.best_metric : value >= *state.best_metric)) {
    return false;
  }
  state.best_metric = value;
  state.best_global_step = state.global_step;
  return true;
}

void BestModel::complete_save() {
  if (unsaved_) complete_ = *std::exchange(unsaved_, std::nullopt);
}

void BestModel::forget_save(TrainerState& state) {
  if (unsaved_ && state.best_global_step == unsaved_->step) {
    state.best_metric = complete_.metric;
    state.best_global_step = complete_.step;
    state.best_model_checkpoint = complete_.checkpoint;
  }
  unsaved_.reset();
}

}  // namespace lockstep
