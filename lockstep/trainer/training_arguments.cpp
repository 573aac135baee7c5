#include "lockstep/trainer/training_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/trainer/lr_scheduler_kwargs.h"

namespace lockstep {
namespace {

template <class T>
void require(bool ok, const char* name, const T& value, const char* expected) {
  if (!ok) throw ValueError(fmt::format("{} is {}; it must be {}", name, value, expected));
}

template <class T>
void require_positive(const char* name, T value) {
  require(value >= 1, name, value, "1 or more");
}

void require_not_negative(const char* name, double value) {
  require(std::isfinite(value) && value >= 0, name, value, "0 or more");
}

}  // namespace

void TrainingArguments::validate() const {
  require_positive("per_device_train_batch_size", per_device_train_batch_size);
  require_positive("per_device_eval_batch_size", per_device_eval_batch_size);
  require_positive("gradient_accumulation_steps", gradient_accumulation_steps);
  require(max_steps == -1 || max_steps > 0, "max_steps", max_steps, "1 or more, or -1 for num_train_epochs");
  require(std::isfinite(num_train_epochs) && (num_train_epochs > 0 || max_steps > 0), "num_train_epochs",
          num_train_epochs, "above 0");
  require_not_negative("learning_rate", learning_rate);
  require_not_negative("warmup_steps", warmup_steps);
  require_not_negative("weight_decay", weight_decay);
  require_not_negative("max_grad_norm", max_grad_norm);
  require(adam_beta1 >= 0 && adam_beta1 < 1, "adam_beta1", adam_beta1, "in [0, 1)");
  require(adam_beta2 >= 0 && adam_beta2 < 1, "adam_beta2", adam_beta2, "in [0, 1)");
  require_not_negative("adam_epsilon", adam_epsilon);
  LRScheduleOptions schedule{.type = scheduler_type(lr_scheduler_type)};
  read_lr_scheduler_kwargs(lr_scheduler_kwargs, schedule);
  require(logging_steps >= 0, "logging_steps", logging_steps, "0 or more");
  require(eval_steps >= 0, "eval_steps", eval_steps, "0 or more");
  require(dataloader_num_workers >= 0, "dataloader_num_workers", dataloader_num_workers, "0 or more");
  require_positive("dataloader_prefetch_factor", dataloader_prefetch_factor);
  require(ddp_bucket_cap_mb > 0, "ddp_bucket_cap_mb", ddp_bucket_cap_mb, "above 0");
  require(ddp_backend.empty() || ddp_backend == "lockstep" || ddp_backend == "gloo", "ddp_backend",
          ddp_backend, "lockstep or gloo");
  require(ddp_timeout.count() >= 1, "ddp_timeout", ddp_timeout.count(), "1 second or more");
}

int64_t TrainingArguments::resolved_warmup_steps(int64_t num_training_steps) const {
  if (warmup_steps >= 1) return static_cast<int64_t>(warmup_steps);
  return static_cast<int64_t>(std::ceil(static_cast<double>(num_training_steps) * warmup_steps));
}

LRScheduleOptions TrainingArguments::lr_schedule(int64_t num_training_steps) const {
  LRScheduleOptions schedule{.type = scheduler_type(lr_scheduler_type)};
  read_lr_scheduler_kwargs(lr_scheduler_kwargs, schedule);
  schedule.num_warmup_steps = resolved_warmup_steps(num_training_steps);
  schedule.num_training_steps = num_training_steps;
  check_lr_schedule(schedule, learning_rate);
  return schedule;
}

int64_t TrainingArguments::resolved_logging_steps(int64_t num_training_steps) const {
  if (logging_steps > 0) return logging_steps;
  return std::clamp<int64_t>(num_training_steps / 10, 1, 500);
}

int64_t TrainingArguments::resolved_eval_steps(int64_t num_training_steps) const {
  return eval_steps > 0 ? eval_steps : resolved_logging_steps(num_training_steps);
}

IntervalStrategy parse_interval_strategy(const std::string& flag, const std::string& text) {
  if (text == "no") return IntervalStrategy::NO;
  if (text == "steps") return IntervalStrategy::STEPS;
  if (text == "epoch") return IntervalStrategy::EPOCH;
  throw ValueError(fmt::format("{} is {}; it must be no, steps or epoch", flag, text));
}

}  // namespace lockstep
