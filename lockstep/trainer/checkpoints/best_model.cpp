#include "lockstep/trainer/checkpoints/best_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/trainer/best_metric.h"

namespace lockstep {

namespace {

/// The names of what an evaluation measures of the model, without those of its speed.
std::vector<std::string> find_measures(const Metrics& evaluation) {
  std::vector<std::string> names;
  for (const auto& [name, value] : evaluation) {
    const bool is_speed = name.ends_with("_runtime") || name.ends_with("_per_second");
    if (name.starts_with("eval_") && !is_speed) names.push_back(name);
  }
  return names;
}

}  // namespace

bool note_best(TrainerState& state, const TrainingArguments& arguments, const Metrics& evaluation) {
  const auto found = evaluation.find(arguments.best_metric());
  if (found == evaluation.end()) {
    if (!needs_best_metric(arguments)) return false;
    throw ValueError(
        fmt::format("metric_for_best_model is {}, which the evaluation does not give; it gives {}",
                    arguments.best_metric(), fmt::join(find_measures(evaluation), ", ")));
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

void BestModel::tell(TrainerState& state) const {
  state.best_metric = complete_.metric;
  state.best_global_step = complete_.step;
  state.best_model_checkpoint = complete_.checkpoint;
}

void BestModel::forget_save(TrainerState& state) {
  if (unsaved_ && state.best_global_step == unsaved_->step) tell(state);
  unsaved_.reset();
}

}  // namespace lockstep
