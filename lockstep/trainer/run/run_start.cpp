#include "lockstep/trainer/run/run_start.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/trainer/checkpoints/changed_run.h"

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

/// Ranks whose labels or data differ would train different models.
void check_same_record(const checkpoint::RunRecord& record, const ProcessGroup& group) {
  checkpoint::Hash hash;
  hash.update(record.to_json());
  const auto hashes = group.all_gather_bytes(hash.hex());
  const auto other =
      std::find_if(hashes.begin(), hashes.end(), [&](const auto& each) { return each != hashes[0]; });
  if (other == hashes.end()) return;
  const auto rank = static_cast<size_t>(other - hashes.begin());
  const auto records = group.all_gather_bytes(record.to_json());  // they may be long: only if they differ
  on_all_ranks(group, [&] {
    const auto differences =
        compare(checkpoint::RunRecord::from_json(records[0], "rank 0's record"),
                checkpoint::RunRecord::from_json(records[rank], fmt::format("rank {}'s record", rank)));
    std::vector<std::string> texts;
    for (const auto& each : differences) {
      texts.push_back(fmt::format("{}: {} on rank 0, {} on rank {}", each.name, each.saved, each.now, rank));
    }
    throw ValueError(fmt::format("the ranks have different records of the run: {}; all ranks need the same",
                                 fmt::join(texts, "; ")));
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

/// The best model was chosen by another metric.
void forget_best(ResumePoint& resumed) {
  resumed.forgets_best = true;
  resumed.state.best_metric.reset();
  resumed.state.best_global_step.reset();
  resumed.state.best_model_checkpoint.clear();
}

/// Compares the run with that of the checkpoint, and notes in `record` what is allowed to differ. Returns whether data or
/// sampling are.
bool accept_changes(const checkpoint::RunRecord& given, checkpoint::RunRecord& record, ResumePoint& resumed,
                    TrainingArguments& arguments, TrainingBar& bar) {
  auto now = record;
  if (!resumed.has_record) {
    for (const auto& [name, entry] : given.entries()) now.remove(name);
  }
  const ChangedRun changed = compare_runs(resumed.record, std::move(now), resumed.arguments, arguments,
                                          resumed.position.is_within_epoch());
  const std::string place = resumed.checkpoint.path().string();
  refuse_changes(changed.record.refused, place, kResumeAnywayFlag);
  if (!resumed.has_record) {
    bar.message(fmt::format(
        "warning: {} has no {}, as those of earlier versions: tokenizer, labels and data are not compared",
        place, checkpoint::kRunRecordName));
  }
  for (const auto& each : resumed.record.resumed_anyway()) record.add(each);
  const auto& allowed = changed.record.allowed;
  if (!allowed.empty()) {
    auto note = checkpoint::describe_resume(resumed.state.global_step, allowed);
    bar.message(fmt::format("warning: resumed anyway, although it is another run: {}",
                            fmt::join(note.differences, "; ")));
    record.add(std::move(note));
  }
  const auto text = describe_changed_arguments(changed);
  if (!text.empty()) bar.message(text);
  keep_arguments(resumed.arguments, arguments);
  if (changed.forgets_best) forget_best(resumed);
  for (const auto& each : changed.record.said) {
    if (each.name != "world_size") bar.message(describe(each));  // adapt_to() tells about ranks
  }
  return std::any_of(allowed.begin(), allowed.end(), [](const auto& each) {
    return each.kind == checkpoint::RecordKind::data || each.kind == checkpoint::RecordKind::sampling;
  });
}

/// The epoch that `position` is in, with its part that is done.
double epoch_at(const TrainingPosition& position, const TrainingPlan& plan) {
  const int64_t step = position.update_steps_done;
  if (step == 0) return static_cast<double>(position.epoch);
  const int64_t micro_batches =
      (step - 1) * plan.gradient_accumulation_steps + plan.micro_batches_of(step - 1);
  return static_cast<double>(position.epoch) +
         static_cast<double>(micro_batches) / static_cast<double>(plan.micro_batches_per_epoch);
}

}  // namespace

RunStart find_start(TrainerParts& parts, std::optional<ResumePoint>& resumed, TrainingBar& bar) {
  const ProcessGroup& group = parts.group;
  if (group.size() > 1) check_same_data(parts);
  const int ranks = data_ranks(*parts.engine, group);
  on_all_ranks(group, [&] {  // with too few samples, which plan_training() names
    if (parts.train_dataset.size < ranks) plan_training(parts.train_dataset.size, ranks, parts.arguments);
  });
  const int threads = at::get_num_threads();
  RunStart start{.record = parts.record};
  if (group.size() > 1) check_same_record(start.record, group);
  bool moves = false;
  TrainingPosition& position = start.position;
  if (resumed) {
    std::string adapted;
    const auto taken = take_seeds(resumed->arguments, parts.arguments);
    if (!taken.empty()) bar.message(taken);
    on_all_ranks(group, [&] {
      start.record.add(make_trainer_record(parts.arguments, parts.train_dataset.size, ranks, threads));
      moves = accept_changes(parts.record, start.record, *resumed, parts.arguments, bar);
      position = resumed->position;
      adapted = adapt_to(position, ranks, parts.arguments);
      check_arithmetic(position, parts.arguments, threads);
    });
    if (!adapted.empty()) bar.message(adapted);
  }
  start.plan = plan_training(parts.train_dataset.size, ranks, parts.arguments);
  const TrainingPlan& plan = start.plan;
  start.state = begin_state(plan, parts.arguments, resumed);
  if (resumed && moves) {
    move_to(position, plan, start.state.global_step, parts.train_dataset.size);
    start.state.epoch = epoch_at(position, plan);
  } else if (resumed) {
    on_all_ranks(group, [&] { check_plan(position, plan); });
  } else {
    start.record.add(make_trainer_record(parts.arguments, parts.train_dataset.size, ranks, threads));
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
                    ranks, group.size(), group.size() == 1 ? "" : "es", threads));
  }
  position.world_size = ranks;
  position.threads = threads;
  return start;
}

}  // namespace lockstep::detail
