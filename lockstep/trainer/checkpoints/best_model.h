// Which evaluation was the best so far. Pure.
#pragma once

#include "lockstep/trainer/trainer_state.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// Takes an evaluation of step state.global_step into best_metric and best_global_step, where it is better than those
/// before; an equal one and one that is not a number are not. Returns whether it was. Throws ValueError where the
/// arguments need the metric (load_best_model_at_end, save_strategy best, reduce_lr_on_plateau) and `evaluation` lacks it.
bool note_best(TrainerState& state, const TrainingArguments& arguments, const Metrics& evaluation);

}  // namespace lockstep
