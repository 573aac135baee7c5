// How a run that resumes differs from the checkpoint's: what is refused, what is kept, what is new.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/checkpoint/run_record.h"
#include "lockstep/trainer/checkpoints/resume.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// What comes before the kinds that a refused resume names.
inline constexpr const char* kResumeAnywayFlag = "--resume-anyway ";

/// The entries that the Trainer itself makes: arguments which a resume refuses to change, the number of training samples, the
/// ranks and the threads of each.
checkpoint::RunRecord make_trainer_record(const TrainingArguments& arguments, int64_t train_samples,
                                          int64_t ranks, int64_t threads);

/// The entries of make_trainer_record() that a training_args.json tells. An argument that it lacks, as one of an earlier version
/// may, is no entry.
checkpoint::RunRecord read_argument_record(const std::string& training_args);

/// What differs between a checkpoint and a run that resumes from it.
struct ChangedRun {
  checkpoint::RecordCheck record{};  ///< refused, allowed by resume_anyway, said
  std::vector<std::string>
      kept{};  ///< arguments whose old value takes effect: "learning_rate 0.001 (not 0.0001)"
  std::vector<std::string> changed{};  ///< arguments whose new value takes effect: "bf16 true (was false)"
  bool forgets_best = false;           ///< the best model so far was chosen by another metric
};

/// Compares records and arguments. `within_epoch`: the checkpoint lies in the middle of an epoch. Throws ValueError if
/// lr_scheduler_type changes to or from reduce_lr_on_plateau, whose states differ. Pure.
ChangedRun compare_runs(const checkpoint::RunRecord& saved, checkpoint::RunRecord now,
                        const std::string& saved_arguments, const TrainingArguments& arguments,
                        bool within_epoch);

/// compare_runs() for a program that does not have everything yet: those entries of `known`, and the arguments. Pure.
ChangedRun find_changes(const ResumePoint& point, const checkpoint::RunRecord& known,
                        const TrainingArguments& arguments);

/// Gives `arguments` the checkpoint's values of those fields that a resume keeps.
void keep_arguments(const std::string& saved_arguments, TrainingArguments& arguments);

/// Gives seed and data_seed, where the user has not given them (TrainingArguments::not_given), the values of the checkpoint's run.
/// Who gives another seed and no data_seed gives the seed of the order of samples with it. Returns what it has changed, for the
/// user; empty: nothing. Pure.
std::string take_seeds(const std::string& saved_arguments, TrainingArguments& arguments);

/// "warning: other arguments than the checkpoint's run had; the old value takes effect: ...; the new value takes effect:
/// ..."; empty if nothing differs.
std::string describe_changed_arguments(const ChangedRun& changed);

}  // namespace lockstep
