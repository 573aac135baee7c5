// The directory of a training run: one run in it, unless the user says otherwise.
#pragma once

#include <filesystem>

#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// Throws ValueError naming what it found when output_dir holds another training run (a log.jsonl, a
/// trainer_state.json, a model.safetensors or a checkpoint). overwrite_output_dir allows it; so do resume_from_checkpoint,
/// unless that checkpoint lies elsewhere, and a restart of this job (TORCHELASTIC_RESTART_COUNT above 0, as
/// lockrun and torchrun set it), whose earlier attempt wrote those.
void check_output_dir(const TrainingArguments& arguments);

/// Makes output_dir where it is missing, and removes what an earlier run has left in it: log, state, results
/// and predictions, with overwrite_output_dir checkpoints too, but not its model, which stays until the new one is
/// complete. A run that `resumes` keeps everything. Throws FileError.
void begin_output_dir(const TrainingArguments& arguments, bool resumes);

}  // namespace lockstep
