// Where a training that resumes goes on, and whether it may.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/run_record.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/state/state_dict.h"
#include "lockstep/trainer/trainer_state.h"
#include "lockstep/trainer/training_arguments.h"
#include "lockstep/trainer/training_plan.h"

namespace lockstep {

/// How far a training is, and what its steps are made of. The same on all ranks.
struct TrainingPosition {
  int64_t epoch = 0;              ///< that runs
  int64_t update_steps_done = 0;  ///< in it
  double loss_since_log = 0, total_loss = 0;
  int64_t last_logged_step = 0;
  // These are the last step's, for the entry of the log that a resumed run may begin with. Nothing: a
  // checkpoint of an earlier version does not say.
  std::optional<double> grad_norm{}, learning_rate{};

  int64_t world_size = 1;  ///< or, with deterministic_world, logical ranks
  int64_t threads = 0;     ///< of a process; 0: a checkpoint of an earlier version does not say
  int64_t total_train_batch_size = 0;
  int64_t update_steps_per_epoch = 0;
  int64_t samples_per_epoch = 0;
  int64_t dataset_size = 0;
  // What the order of samples was made with, whatever the number of ranks now.
  int64_t sampler_batch_size = 0, sampler_accumulation_steps = 0;

  /// Whether some of the epoch's steps are done, but not all: what is saved after its last step is at its end.
  bool is_within_epoch() const { return update_steps_done > 0 && update_steps_done < update_steps_per_epoch; }

  StateDict state_dict() const;
  static TrainingPosition from(const StateDict& state);
};

struct ResumePoint {
  checkpoint::Checkpoint checkpoint;
  TrainerState state;
  StateDict training;  ///< training_state: the position, and what callbacks and the EMA need
  TrainingPosition position;
  std::string arguments;         ///< training_args.json
  checkpoint::RunRecord record;  ///< with the entries of read_argument_record()
  bool has_record = false;       ///< a checkpoint of an earlier version has only those entries
  bool forgets_best = false;     ///< the best model so far no longer counts: it was chosen by another metric
};

/// What resume_from_checkpoint asks for.
enum class ResumeSource : uint8_t {
  start,            ///< nothing: also "false"
  newest,           ///< "latest": an error if there is none
  newest_or_start,  ///< "auto", and "true", as transformers spells it
  path,             ///< a directory
};
/// "true" and "false" in any case. Pure.
ResumeSource resume_source(const TrainingArguments& arguments);

/// Reads what a training needs of a checkpoint that open_run() has verified. `speaks`: warns if the best model is no longer
/// there. Throws FileError, and ValueError for a checkpoint that cannot be resumed from. Blocks.
ResumePoint read_resume_point(const checkpoint::Checkpoint& checkpoint, const TrainingArguments& arguments,
                              bool speaks);

/// With another number of ranks than `position`'s: changes gradient_accumulation_steps so that a step has as many samples as
/// before. Returns what was changed, for the user; empty: nothing. Throws ValueError where that cannot be. Pure.
std::string adapt_to(const TrainingPosition& position, int world_size, TrainingArguments& arguments);
/// With deterministic_world: throws ValueError where a process has another number of threads than those of `position`'s run,
/// whose sums would not be repeated.
void check_arithmetic(const TrainingPosition& position, const TrainingArguments& arguments, int threads);
/// Throws ValueError where an epoch of `plan` has other steps or samples than `position`'s.
void check_plan(const TrainingPosition& position, const TrainingPlan& plan);
/// Data or sampling are others, and the user has allowed it: the position after `steps_done` steps among the epochs of
/// `plan`. If an epoch has as many steps as before, that is the old place. Pure.
void move_to(TrainingPosition& position, const TrainingPlan& plan, int64_t steps_done, int64_t dataset_size);

/// Copies the checkpoint's model into `module`. Throws ValueError that names the tensors which are missing, unexpected or of
/// another shape; then the module is as before.
void load_model(torch::nn::Module& module, const checkpoint::Checkpoint& checkpoint);

}  // namespace lockstep
