// Where a training begins.
#pragma once

#include <optional>

#include "lockstep/checkpoint/run_record.h"
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
  checkpoint::RunRecord record;  ///< of this run, with the history of those before it
};

/// Plans the training of `parts`, from its beginning or from `resumed`. Compares the run with that of `resumed`: the arguments that
/// a resume keeps get the checkpoint's values, and gradient_accumulation_steps may change, so that a step has as many samples.
/// `bar` says so. Throws ValueError, as on_all_ranks does, if the ranks have different data, for what cannot be trained, and for
/// a run that is another one, unless resume_anyway allows it. Touches no file. Called by all ranks; blocks.
RunStart find_start(TrainerParts& parts, std::optional<ResumePoint>& resumed, TrainingBar& bar);

}  // namespace lockstep::detail
