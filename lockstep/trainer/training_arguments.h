// What a training run is told, under Hugging Face's names and with its defaults (transformers 5).
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "lockstep/data/train_sampler.h"
#include "lockstep/optim/lr_schedule.h"

namespace lockstep {

/// When a training evaluates or logs: never, every so many optimizer steps, or after each epoch.
enum class IntervalStrategy : uint8_t { NO, STEPS, EPOCH };
/// When a training saves a checkpoint; BEST: when an evaluation is the best so far.
enum class SaveStrategy : uint8_t { NO, STEPS, EPOCH, BEST };

/// TrainingArguments.optim_args, for sgd: torch.optim.SGD's arguments, with its defaults.
struct OptimizerArguments {
  double momentum = 0;    ///< factor of the momentum; 0: none
  double dampening = 0;   ///< of the momentum
  bool nesterov = false;  ///< needs a momentum above 0 and no dampening
};

/// transformers.TrainingArguments, the part that is supported, and what Lightning's users know. Every field
/// with its type, default and meaning stands in training_arguments.inc, and as a page in
/// docs/training_arguments.md.
struct TrainingArguments {
#define LOCKSTEP_ARGUMENT(type, name, preset, preset_text, ok, expected, word, help) type name = preset;
#include "lockstep/trainer/training_arguments.inc"

  /// Names those of "seed" and "data_seed" whose flag the user has not given: a resume takes the checkpoint's value. Filled by
  /// add_training_flags(); what a program has set without flags must be the checkpoint's.
  std::set<std::string> not_given{};

  /// Throws ValueError naming the argument, its value and what is allowed.
  void validate() const;
  /// Optimizer steps between log entries of a run of `num_training_steps`.
  int64_t resolved_logging_steps(int64_t num_training_steps) const;
  /// Optimizer steps between evaluations under IntervalStrategy::STEPS.
  int64_t resolved_eval_steps(int64_t num_training_steps) const;
  /// Optimizer steps between checkpoints under SaveStrategy::STEPS.
  int64_t resolved_save_steps(int64_t num_training_steps) const;
  /// Whether train() evaluates.
  bool evaluates() const { return eval_strategy != IntervalStrategy::NO || val_check_interval > 0; }
  /// Whether train() saves checkpoints.
  bool saves() const { return save_strategy != SaveStrategy::NO && fast_dev_run == 0; }
  /// Whether lr_scheduler_type is reduce_lr_on_plateau, which follows a metric: it has no lr_schedule().
  bool reduces_lr_on_plateau() const { return lr_scheduler_type == "reduce_lr_on_plateau"; }
  /// The arguments of ReduceLROnPlateau. Throws ValueError for lr_scheduler_kwargs that it does not have.
  ReduceLROnPlateauOptions plateau_options() const;
  /// The schedule of a run of `num_training_steps`. Throws ValueError for arguments that it cannot use.
  LRScheduleOptions lr_schedule(int64_t num_training_steps) const;
  /// Whole warm-up steps of a run of `num_training_steps`: a share is rounded up.
  int64_t resolved_warmup_steps(int64_t num_training_steps) const;
  /// optim_args. Throws ValueError for those that `optim` does not take.
  OptimizerArguments optimizer_arguments() const;
  /// max_time; nothing: no limit.
  std::optional<std::chrono::seconds> time_limit() const;
  /// data_seed or, without one, seed.
  uint64_t sampling_seed() const { return data_seed.value_or(seed); }
  /// metric_for_best_model as evaluate() returns it, "eval_loss" by default.
  std::string best_metric() const;
  /// greater_is_better or, without it, whether best_metric() is no loss.
  bool best_metric_is_greatest() const;
};

/// "no", "steps" or "epoch"; ValueError naming `flag` otherwise.
IntervalStrategy parse_interval_strategy(const std::string& flag, const std::string& text);
/// The name that parse_interval_strategy() takes.
const char* name_of(IntervalStrategy strategy);
/// "no", "steps", "epoch" or "best"; ValueError naming `flag` otherwise.
SaveStrategy parse_save_strategy(const std::string& flag, const std::string& text);
/// The name that parse_save_strategy() takes.
const char* name_of(SaveStrategy strategy);

/// "true" or "false", in any case, or yes, no, 1 or 0; ValueError naming `name` otherwise.
bool parse_bool(const std::string& name, const std::string& text);

/// "DD:HH:MM:SS", or a number of seconds; nothing for any other text and for no time at all.
std::optional<std::chrono::seconds> parse_duration(std::string_view text);

/// How many of `batches` a limit such as limit_train_batches leaves: that share of them, rounded down but at
/// least one, or above 1 that number of them.
int64_t limited_batches(double limit, int64_t batches);

/// The arguments as transformers writes training_args.json: all fields of training_arguments.inc, in its order,
/// two spaces a level; null where transformers has None.
std::string to_json(const TrainingArguments& arguments);

/// Reads what to_json() or transformers wrote. Fields that `text` lacks keep their defaults; those of
/// transformers that are not supported may be there with a value that changes nothing, such as their default.
/// Throws ValueError that begins with `source`, the file's name, for any other value of those (with the
/// reason), for an unknown field (with the nearest name), a wrong type or a value that is not allowed.
TrainingArguments training_arguments_from_json(std::string_view text, const std::string& source);

}  // namespace lockstep
