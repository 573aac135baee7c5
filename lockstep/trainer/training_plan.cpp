#include "lockstep/trainer/training_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

int64_t TrainingPlan::micro_batches_of(int64_t step) const {
  const int64_t begin = step * gradient_accumulation_steps;
  return std::min(gradient_accumulation_steps, micro_batches_per_epoch - begin);
}

int64_t TrainingPlan::samples_of(int64_t step) const {
  return std::min(total_train_batch_size, samples_per_epoch - step * total_train_batch_size);
}

TrainingPlan plan_training(int64_t num_samples, int world_size, const TrainingArguments& arguments) {
  if (num_samples < world_size && arguments.deterministic_world > 0) {
    throw ValueError(fmt::format(
        "the training set has {} sample{}, fewer than the {} logical ranks; lower deterministic_world",
        num_samples, num_samples == 1 ? "" : "s", world_size));
  }
  if (num_samples < world_size) {
    throw ValueError(fmt::format(
        "the training set has {} sample{}, fewer than the {} ranks; start at most {} process{}", num_samples,
        num_samples == 1 ? "" : "s", world_size, num_samples, num_samples == 1 ? "" : "es"));
  }
  const int64_t global_batch = arguments.per_device_train_batch_size * world_size;
  TrainingPlan plan;
  plan.samples_per_epoch = num_samples - (arguments.dataloader_drop_last ? num_samples % global_batch : 0);
  plan.gradient_accumulation_steps = arguments.gradient_accumulation_steps;
  plan.total_train_batch_size = global_batch * arguments.gradient_accumulation_steps;
  plan.micro_batches_per_epoch = divide_up(plan.samples_per_epoch, global_batch);
  if (plan.micro_batches_per_epoch == 0) {
    throw ValueError(
        fmt::format("dataloader_drop_last leaves nothing: the training set has {} samples, one batch over {} "
                    "ranks has {}; lower per_device_train_batch_size",
                    num_samples, world_size, global_batch));
  }
  int64_t wanted = limited_batches(arguments.limit_train_batches, plan.micro_batches_per_epoch);
  for (const int64_t limit : {arguments.fast_dev_run, arguments.overfit_batches}) {
    if (limit > 0) wanted = std::min(wanted, limit);
  }
  plan.is_limited = wanted < plan.micro_batches_per_epoch;
  plan.micro_batches_per_epoch = wanted;
  plan.samples_per_epoch = std::min(plan.samples_per_epoch, wanted * global_batch);
  plan.update_steps_per_epoch =
      divide_up(plan.micro_batches_per_epoch, arguments.gradient_accumulation_steps);
  plan.max_steps = arguments.max_steps > 0
                       ? arguments.max_steps
                       : static_cast<int64_t>(std::ceil(arguments.num_train_epochs *
                                                        static_cast<double>(plan.update_steps_per_epoch)));
  if (arguments.fast_dev_run > 0) plan.max_steps = std::min(plan.max_steps, plan.update_steps_per_epoch);
  plan.num_train_epochs = divide_up(plan.max_steps, plan.update_steps_per_epoch);
  return plan;
}

RankEpoch deal_epoch(const std::vector<int64_t>& order, int world_size, int rank, int64_t batch_size,
                     bool drop_last) {
  auto total = static_cast<int64_t>(order.size());
  const int64_t global_batch = batch_size * world_size;
  if (drop_last) total -= total % global_batch;
  RankEpoch epoch;
  epoch.indices.reserve(static_cast<size_t>(divide_up(total, world_size) + 1));
  for (int64_t i = rank; i < total; i += world_size) {
    epoch.indices.push_back(order[static_cast<size_t>(i)]);
  }
  const auto own = static_cast<int64_t>(epoch.indices.size());
  if (divide_up(own, batch_size) < divide_up(total, global_batch)) {
    epoch.indices.push_back(order[static_cast<size_t>(total - 1)]);
    epoch.last_is_substitute = true;
  }
  return epoch;
}

}  // namespace lockstep
