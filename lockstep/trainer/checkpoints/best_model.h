// Which evaluation was the best so far, and whether a checkpoint has its model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/trainer/trainer_state.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// Takes an evaluation of step state.global_step into best_metric and best_global_step, if it is better than those
/// before; an equal one and one that is not a number are not. Returns whether it was. Throws ValueError if the
/// arguments need the metric (load_best_model_at_end, save_strategy best, reduce_lr_on_plateau) and `evaluation` lacks it.
/// Pure.
bool note_best(TrainerState& state, const TrainingArguments& arguments, const Metrics& evaluation);

/// The best model whose checkpoint is complete. A better one counts from its first save on; if that fails, the one before is
/// again the best. Pure.
class BestModel {
 public:
  /// What `state` names is complete.
  explicit BestModel(const TrainerState& state) : complete_(state) {}
  /// The best model of `state` is being saved.
  void begin_save(const TrainerState& state) { unsaved_.emplace(state); }
  /// What was being saved is complete.
  void complete_save();
  /// What was being saved has failed: `state` gets the one before.
  void forget_save(TrainerState& state);
  /// Into the three fields of `state` that name it: BestModel(state) is this one again.
  void tell(TrainerState& state) const;

 private:
  struct Best {
    explicit Best(const TrainerState& state)
        : metric(state.best_metric), step(state.best_global_step), checkpoint(state.best_model_checkpoint) {}
    std::optional<double> metric;
    std::optional<int64_t> step;
    std::string checkpoint;
  };
  Best complete_;
  std::optional<Best> unsaved_{};
};

}  // namespace lockstep
