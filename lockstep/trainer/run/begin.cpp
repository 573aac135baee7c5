// What train() does before its first step.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/optim/group_tensors.h"
#include "lockstep/parallel/parameters.h"
#include "lockstep/trainer/evaluation.h"
#include "lockstep/trainer/flow.h"
#include "lockstep/trainer/optimizer_choice.h"
#include "lockstep/trainer/output/output_dir.h"
#include "lockstep/trainer/run/trainer_impl.h"

namespace lockstep {
using namespace detail;

// What would else be found after the first epoch.
void Trainer::Impl::try_before_training() {
  if (parts.eval_dataset.size == 0) return;
  if (!parts.metrics.empty()) {
    module.eval();
    try_evaluation(parts.eval_dataset, *parts.engine, arguments, parts.metrics);
  }
  if (!arguments.reduces_lr_on_plateau() || parts.compute_metrics) return;
  std::string names = "eval_loss";
  bool found = arguments.best_metric() == names;
  for (const auto& metric : parts.metrics) {
    found |= arguments.best_metric() == "eval_" + metric->name();
    names += ", eval_" + metric->name();
  }
  if (!found) {
    throw ValueError(fmt::format("metric_for_best_model is {}; the evaluation has {}",
                                 arguments.metric_for_best_model, names));
  }
}

void Trainer::Impl::begin_schedule(Run& run) {
  auto& optimizer = *parts.optimizer;
  if (arguments.reduces_lr_on_plateau()) {
    auto options = arguments.plateau_options();
    options.mode = arguments.best_metric_is_greatest() ? ReduceLROnPlateauOptions::Mode::max
                                                       : ReduceLROnPlateauOptions::Mode::min;
    run.plateau.emplace(optimizer, options);
  } else {
    run.scheduler.emplace(optimizer, arguments.lr_schedule(run.plan.max_steps));
  }
}

/// Among how many ranks samples are divided.
int Trainer::Impl::data_ranks() const {
  const auto* logical = parts.engine->logical_ranks();
  return logical != nullptr ? logical->size() : group.size();
}

/// Ranks that count differently would train on samples that are not theirs, or wait for batches that never come.
void Trainer::Impl::check_same_data() {
  const auto sizes = fmt::format("{} samples to train on and {} to evaluate", parts.train_dataset.size,
                                 parts.eval_dataset.size);
  const auto of_ranks = group.all_gather_bytes(sizes);
  const auto other =
      std::find_if(of_ranks.begin(), of_ranks.end(), [&](const auto& text) { return text != of_ranks[0]; });
  on_all_ranks(group, [&] {
    if (other == of_ranks.end()) return;
    throw ValueError(fmt::format("rank 0 has {}, rank {} has {}; all ranks need the same data", of_ranks[0],
                                 other - of_ranks.begin(), *other));
  });
}

Run Trainer::Impl::plan_run(const std::optional<ResumePoint>& resumed) {
  if (group.size() > 1) check_same_data();
  const int ranks = data_ranks();
  on_all_ranks(group, [&] {  // with too few samples, which plan_training() names
    if (parts.train_dataset.size < ranks) plan_training(parts.train_dataset.size, ranks, arguments);
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
  const auto plan = plan_training(parts.train_dataset.size, ranks, arguments);
  if (resumed) {
    on_all_ranks(group, [&] { check_plan(position, plan); });
  } else {
    position.total_train_batch_size = plan.total_train_batch_size;
    position.update_steps_per_epoch = plan.update_steps_per_epoch;
    position.samples_per_epoch = plan.samples_per_epoch;
    position.dataset_size = parts.train_dataset.size;
    position.sampler_batch_size = arguments.per_device_train_batch_size;
    position.sampler_accumulation_steps = arguments.gradient_accumulation_steps;
  }
  if (arguments.deterministic_world > 0) {
    bar.message(
        fmt::format("{} logical ranks on {} process{}: runs with OMP_NUM_THREADS={} have the same bits",
                    ranks, group.size(), group.size() == 1 ? "" : "es", at::get_num_threads()));
  }
  position.world_size = ranks;
  position.threads = at::get_num_threads();
  const bool keeps_order = arguments.overfit_batches > 0;
  TrainSampler sampler(
      parts.train_dataset.size,
      {.strategy = keeps_order ? TrainSamplingStrategy::sequential : arguments.train_sampling_strategy,
       .batch_size = position.sampler_batch_size,
       .gradient_accumulation_steps = position.sampler_accumulation_steps,
       .seed = arguments.sampling_seed()},
      parts.train_dataset.lengths);
  return {
      .plan = plan, .sampler = std::move(sampler), .position = position, .parameters = parameters(module)};
}

void Trainer::Impl::begin_state(const Run& run, const std::optional<ResumePoint>& resumed) {
  const auto& plan = run.plan;
  state = resumed ? resumed->state : TrainerState();
  state.max_steps = plan.max_steps;
  state.num_train_epochs = plan.num_train_epochs;
  state.train_batch_size = arguments.per_device_train_batch_size;
  state.logging_steps = arguments.resolved_logging_steps(plan.max_steps);
  state.eval_steps = arguments.resolved_eval_steps(plan.max_steps);
  state.save_steps = arguments.resolved_save_steps(plan.max_steps);
  progress = Progress();
  progress.total_steps = plan.max_steps;
  progress.step = state.global_step;
  progress.epoch = state.epoch;
  progress.grad_norm = run.position.grad_norm;
  progress.learning_rate = run.position.learning_rate;
  control = TrainerControl();
  control.should_training_stop = state.global_step >= plan.max_steps;
  first_step = state.global_step;
  last_saved_step = resumed ? state.global_step : -1;
  saved_best = {state.best_metric, state.best_global_step, state.best_model_checkpoint};
  unsaved_best.reset();
  last_evaluation.clear();
  last_evaluation_step = -1;
  seconds_evaluating = 0;
  if (!state.log_history.empty() && state.log_history.back().values.contains("eval_loss") &&
      state.log_history.back().step == state.global_step) {
    last_evaluation = state.log_history.back().values;
    last_evaluation["epoch"] = state.epoch;
    last_evaluation_step = state.global_step;
  }
}

namespace {

// An optimizer that the user gives: torch::optim's step a tensor once per listing. Lockstep's list each once.
void tell_repeated_parameters(const torch::optim::Optimizer& optimizer, TrainingBar& bar) {
  size_t listed = 0, different = 0;
  for (const auto& group : optimizer.param_groups()) listed += group.params().size();
  for (const auto& group : tensors_once(optimizer.param_groups())) different += group.size();
  if (listed == different) return;
  bar.message(fmt::format(
      "warning: the optimizer lists {} parameters, of which {} are different tensors, and steps a tensor "
      "once per listing; make it of lockstep::parameters(model)",
      listed, different));
}

}  // namespace

void Trainer::Impl::begin_optimizer() {
  if (!parts.optimizer || owns_optimizer) {
    parts.optimizer = make_optimizer(arguments, module, parts.parameter_rules, group);
    owns_optimizer = true;
  } else {
    // The schedule of another training begins where that of the first did.
    auto& groups = parts.optimizer->param_groups();
    for (size_t g = 0; g < groups.size(); ++g) {
      if (g == given_rates.size()) given_rates.push_back(groups[g].options().get_lr());
      groups[g].options().set_lr(given_rates[g]);
    }
    tell_repeated_parameters(*parts.optimizer, bar);
  }
}

Run Trainer::Impl::begin_run() {
  const auto resumed = find_resume_point(arguments, group);
  Run run = plan_run(resumed);
  begin_state(run, resumed);
  on_all_ranks(group, [&] {
    if (!arguments.reduces_lr_on_plateau())
      arguments.lr_schedule(run.plan.max_steps);  // a mistake is told before files are touched
    run_log.begin(arguments, resumed ? &resumed->state.log_history : nullptr);
  });
  is_tracked = true;
  checkpoints.reset();
  if (arguments.saves()) {
    checkpoints.emplace(arguments, group,
                        [this](const std::string& line) {  // of a checkpoint that has failed
                          forget_unsaved_best();
                          bar.message(line);
                        });
  }
  if (checkpoints && resumed) {  // behind its constructor, which gives replaced ones their names back
    on_all_ranks(group, [&] {
      if (group.rank() != 0) return;
      for (const auto& name : set_aside_later(arguments, state.global_step))
        bar.message(fmt::format("{}: of the continuation that this one replaces", name));
    });
  }
  begin_optimizer();
  begin_schedule(run);
  if (arguments.ema_decay > 0) ema.emplace(module, arguments.ema_decay, /*use_buffers=*/true);
  callbacks = parts.callbacks;
  callbacks.insert(callbacks.begin(), std::make_shared<DefaultFlow>(run.plan));
  module.train();
  module.zero_grad();  // what was there before, of a training that failed for one, is not of the first step
  start = Clock::now();
  call(LOCKSTEP_EVENT(on_train_begin));
  agree();
  if (resumed) resume(run, *resumed);
  return run;
}

void Trainer::Impl::resume(Run& run, const ResumePoint& from) {
  on_all_ranks(group, [&] { load_files(checkpointed(run), from); });
  bar.message(fmt::format("resuming from {}, step {}/{}{}", from.checkpoint.path().string(),
                          state.global_step, state.max_steps,
                          state.global_step >= state.max_steps ? ": nothing left to train" : ""));
  const auto changes = changed_arguments(from.checkpoint.read_text("training_args.json"), arguments);
  if (!changes.empty()) {
    bar.message(
        "warning: arguments differ from the checkpoint's run, whose optimizer and schedule keep theirs: " +
        changes);
  }
}

}  // namespace lockstep
