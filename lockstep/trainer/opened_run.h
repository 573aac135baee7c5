// A run before its first step: its output_dir, locked against other jobs, and the checkpoint that it goes on from.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/run_record.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// What open_run() has found. While a copy of it lives, no other job can train in its output_dir.
class OpenedRun {
 public:
  /// For open_run().
  OpenedRun(std::shared_ptr<const void> lock, std::optional<checkpoint::Checkpoint> checkpoint)
      : lock_(std::move(lock)), checkpoint_(std::move(checkpoint)) {}
  /// That resume_from_checkpoint names, verified; nothing: the run begins at its start.
  const std::optional<checkpoint::Checkpoint>& checkpoint() const { return checkpoint_; }
  /// The record of the checkpoint; empty if it has none, as those of earlier versions.
  checkpoint::RunRecord record() const;
  /// What rank 0 holds.
  const std::shared_ptr<const void>& lock() const { return lock_; }

 private:
  std::shared_ptr<const void> lock_;
  std::optional<checkpoint::Checkpoint> checkpoint_;
};

/// Locks output_dir on rank 0, until the process ends or no copy of the result and no Trainer with it is left, and finds the
/// checkpoint of resume_from_checkpoint. Changes no file of an earlier run. For programs that look at the checkpoint before
/// they make their data and model; otherwise Trainer::train() calls it. Gives seed and data_seed the checkpoint's values if
/// their flags were not given (TrainingArguments::not_given), and says so on rank 0. Called by all ranks; blocks. Throws
/// ValueError naming the other job if output_dir is locked, and FileError, as on_all_ranks does.
OpenedRun open_run(TrainingArguments& arguments, const ProcessGroup& group);

/// Compares those entries that `record` has with the checkpoint's, so that a resume is refused before the program writes
/// anything; Trainer::train() compares all entries again. Does nothing for a run that begins. Called by all ranks. Throws
/// ValueError with every old and new value, as on_all_ranks does, unless resume_anyway allows them.
void check_record(const OpenedRun& run, const checkpoint::RunRecord& record,
                  const TrainingArguments& arguments, const ProcessGroup& group);

}  // namespace lockstep
