// Where a training begins.
#pragma once

#include <optional>

#include "lockstep/trainer/checkpoints/resume.h"
#include "lockstep/trainer/output/training_bar.h"
#include "lockstep/trainer/trainer.h"
#include "lockstep/trainer/trainer_state.h"
#include "lockstep/trainer/training_plan.h"

namespace lockstep::detail {

/// How far a training goes, and where it is before its first step. The same on all ranks.
struct RunStart {
  TrainingPlan plan;
  TrainingPosition position;
  TrainerState state;
};

/// Plans the training of `parts`, from its beginning or from `resumed`, whose number of samples in a step it keeps: it may
/// change gradient_accumulation_steps. `bar` says so. Throws ValueError, as on_all_ranks does, if the ranks have different
/// data, or what cannot be trained or resumed. Called by all ranks; blocks.
RunStart find_start(TrainerParts& parts, const std::optional<ResumePoint>& resumed, TrainingBar& bar);

}  // namespace lockstep::detail
