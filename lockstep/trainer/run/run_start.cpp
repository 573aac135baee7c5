#include "lockstep/trainer/run/run_start.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/all_ranks.h"

namespace lockstep::detail {
namespace {

/// Ranks that count differently would train on samples that are not theirs, or wait for batches that never come.
void check_same_data(const TrainerParts& parts) {
  const auto sizes = fmt::format("{} samples to train on and {} to evaluate", parts.train_dataset.size,
                                 parts.eval_dataset.size);
  const auto of_ranks = parts.group.all_gather_bytes(sizes);
  const auto other =
      std::find_if(of_ranks.begin(), of_ranks.end(), [&](const auto& text) { return text != of_ranks[0]; });
  on_all_ranks(parts.group, [&] {
    if (other == of_ranks.end()) return;
    throw ValueError(fmt::format("rank 0 has {}, rank {} has {}; all ranks need the same data", of_ranks[0],
                                 other - of_ranks.begin(), *other));
  });
}

TrainerState begin_state(const TrainingPlan& plan, const TrainingArguments& arguments,
                         const std::optional<ResumePoint>& resumed) {
  TrainerState state = resumed ? resumed->state : TrainerState();
  state.max_steps = plan.max_steps;
  state.num_train_epochs = plan.num_train_epochs;
  state.train_batch_size = arguments.per_device_train_batch_size;
  state.logging_steps = arguments.resolved_logging_steps(plan.max_steps);
  state.eval_steps = arguments.resolved_eval_steps(plan.max_steps);
  state.save_steps = arguments.resolved_save_steps(plan.max_steps);
  return state;
}

}  // namespace

RunStart find_start(TrainerParts& parts, const std::optional<ResumePoint>& resumed, TrainingBar& bar) {
  const ProcessGroup& group = parts.group;
  if (group.size() > 1) check_same_data(parts);
  const int ranks = data_ranks(*parts.engine, group);
  on_all_ranks(group, [&] {  // with too few samples, which plan_training() names
    if (parts.train_dataset.size < ranks) plan_training(parts.train_dataset.size, ranks, parts.arguments);
  });
  TrainingPosition position;
  if (resumed) {
    position = resumed->position;
    std::string adapted;
    on_all_ranks(group, [&] {
      adapted = adapt_to(position, ranks, parts.train_dataset.size, parts.arguments);
      check_arithmetic(position, parts.arguments, at::get_num_threads());
    });
    if (!adapted.empty()) bar.message(adapted);
  }
  const auto plan = plan_training(parts.train_dataset.size, ranks, parts.arguments);
  if (resumed) {
    on_all_ranks(group, [&] { check_plan(position, plan); });
  } else {
    position.total_train_batch_size = plan.total_train_batch_size;
    position.update_steps_per_epoch = plan.update_steps_per_epoch;
    position.samples_per_epoch = plan.samples_per_epoch;
    position.dataset_size = parts.train_dataset.size;
    position.sampler_batch_size = parts.arguments.per_device_train_batch_size;
    position.sampler_accumulation_steps = parts.arguments.gradient_accumulation_steps;
  }
  if (parts.arguments.deterministic_world > 0) {
    bar.message(
        fmt::format("{} logical ranks on {} process{}: runs with OMP_NUM_THREADS={} have the same bits",
                    ranks, group.size(), group.size() == 1 ? "" : "es", at::get_num_threads()));
  }
  position.world_size = ranks;
  position.threads = at::get_num_threads();
  return {.plan = plan, .position = position, .state = begin_state(plan, parts.arguments, resumed)};
}

}  // namespace lockstep::detail
