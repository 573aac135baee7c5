// What a training run is told, under Hugging Face's names and with its defaults (transformers 5).
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "lockstep/data/train_sampler.h"
#include "lockstep/optim/lr_schedule.h"

namespace lockstep {

enum class IntervalStrategy : uint8_t { NO, STEPS, EPOCH };

/// transformers.TrainingArguments, the part that is supported.
struct TrainingArguments {
  std::filesystem::path output_dir = "trainer_output";
  bool overwrite_output_dir = false;  ///< train although output_dir holds another run

  int64_t per_device_train_batch_size = 8;  ///< samples per rank and micro-batch
  int64_t per_device_eval_batch_size = 8;
  int64_t gradient_accumulation_steps = 1;  ///< micro-batches per optimizer step
  double num_train_epochs = 3;              ///< may be a fraction
  int64_t max_steps = -1;                   ///< optimizer steps; > 0 overrides num_train_epochs

  double learning_rate = 5e-5;
  std::string lr_scheduler_type = "linear";  ///< a name of SchedulerType
  std::string lr_scheduler_kwargs{};  ///< fields of LRScheduleOptions as a JSON object: {"num_cycles": 2}
  double warmup_steps = 0;            ///< optimizer steps; below 1: this share of all steps
  double weight_decay = 0;            ///< not applied to biases and LayerNorm
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;  ///< 0: no clipping
  bool bf16 = false;           ///< autocast of the forward pass to bfloat16

  IntervalStrategy logging_strategy = IntervalStrategy::STEPS;
  int64_t logging_steps = 0;  ///< 0: every 500, and a short run so that it logs ten times or more
  bool logging_first_step = false;
  bool disable_tqdm = false;  ///< no live progress bar
  IntervalStrategy eval_strategy = IntervalStrategy::NO;
  int64_t eval_steps = 0;  ///< 0: as logging_steps

  uint64_t seed = 42;
  TrainSamplingStrategy train_sampling_strategy = TrainSamplingStrategy::random;
  bool dataloader_drop_last = false;
  int dataloader_num_workers = 0;  ///< threads
  int dataloader_prefetch_factor = 2;

  double ddp_bucket_cap_mb = 25;
  std::string ddp_backend{};  ///< "lockstep", "gloo", or "": as InitOptions::backend
  std::chrono::seconds ddp_timeout{1800};

  /// Throws ValueError naming the argument, its value and what is allowed.
  void validate() const;
  /// Optimizer steps between log entries of a run of `num_training_steps`.
  int64_t resolved_logging_steps(int64_t num_training_steps) const;
  /// Optimizer steps between evaluations under IntervalStrategy::STEPS.
  int64_t resolved_eval_steps(int64_t num_training_steps) const;
  /// The schedule of a run of `num_training_steps`. Throws ValueError for arguments that it cannot use.
  LRScheduleOptions lr_schedule(int64_t num_training_steps) const;
  /// Whole warm-up steps of a run of `num_training_steps`: a share is rounded up.
  int64_t resolved_warmup_steps(int64_t num_training_steps) const;
};

/// "no", "steps" or "epoch"; ValueError naming `flag` otherwise.
IntervalStrategy parse_interval_strategy(const std::string& flag, const std::string& text);

}  // namespace lockstep
