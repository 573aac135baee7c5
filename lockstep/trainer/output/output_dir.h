// The directory of a training run: one run in it, unless the user says otherwise.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// Throws ValueError naming what it found when output_dir holds another training run (a log.jsonl, a
/// trainer_state.json, a model.safetensors or a checkpoint). overwrite_output_dir allows it; so do resume_from_checkpoint,
/// unless that checkpoint lies elsewhere, and a restart of this job (TORCHELASTIC_RESTART_COUNT above 0, as
/// lockrun and torchrun set it), whose earlier attempt wrote those.
void check_output_dir(const TrainingArguments& arguments);

/// Makes output_dir where it is missing, and removes what an earlier run has left in it: log, state, results
/// and predictions, with overwrite_output_dir checkpoints and the files of trackers too, but not its model, which stays until the new one is
/// complete. A run that `resumes` keeps everything. Throws FileError.
void begin_output_dir(const TrainingArguments& arguments, bool resumes);

/// A run goes on behind `step` of a checkpoint that was given by its path: checkpoints of later steps in output_dir are those
/// of a continuation that was given up, and are renamed to abandoned-checkpoint-N, so that nobody resumes from them.
/// Returns the new names. Throws FileError.
std::vector<std::string> set_aside_later(const TrainingArguments& arguments, int64_t step);

}  // namespace lockstep
