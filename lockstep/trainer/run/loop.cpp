// The training loop: epochs, steps, and what comes after a step.
#include <ATen/Context.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/random_key.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/job/stop_signals.h"
#include "lockstep/optim/autocast.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/timeline/timeline.h"
#include "lockstep/timeline/totals.h"
#include "lockstep/trainer/checkpoints/best_model.h"
#include "lockstep/trainer/divergence.h"
#include "lockstep/trainer/evaluation.h"
#include "lockstep/trainer/run/trainer_impl.h"

namespace lockstep {
using namespace detail;

namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

double tokens_in(const Batch& batch) {
  return batch.contains("input_ids") ? static_cast<double>(batch["input_ids"].numel()) : 0;
}

}  // namespace

void Trainer::Impl::run_pass(RankStep& step, int64_t micro_batch, int64_t step_samples) {
  const bool last = micro_batch + 1 == static_cast<int64_t>(step.micro_batches.size());
  const bool counts = !(last && step.last_is_substitute);
  Loss loss;
  const Batch& batch = step.micro_batches[static_cast<size_t>(micro_batch)];
  {
    const timeline::Counted counted(timeline::Kind::forward);
    const AutocastGuard autocast(arguments.bf16);
    loss = parts.engine->compute_loss(batch);
  }
  check_for_training(loss);
  if (counts) {
    step.loss_sum += loss.sum.item<double>();
    step.count += loss.count;
    step.tokens += tokens_in(batch);
  }
  const timeline::Counted counted(timeline::Kind::backward);
  (loss.sum * (counts ? parts.engine->divisor() / static_cast<double>(step_samples) : 0.0)).backward();
}

// Forward and backward of a step's micro-batches. Gradients are left as those of the sum of the losses over
// `step_samples`: where losses are counted by sample, that is already what the optimizer wants.
StepTotals Trainer::Impl::accumulate(std::vector<RankStep> steps, int64_t step_samples) {
  const auto global_step = static_cast<uint64_t>(state.global_step);
  const auto micro_batches = static_cast<int64_t>(steps.front().micro_batches.size());
  auto* const logical = parts.engine->logical_ranks();
  if (logical != nullptr) {
    logical->run_step(global_step, micro_batches, [&](const LogicalPass& pass) {
      RankStep& step = steps[static_cast<size_t>(pass.rank - logical->own().front())];
      run_pass(step, pass.micro_batch, step_samples);
      if (&step != &steps.back() || pass.micro_batch + 1 < micro_batches)
        call(LOCKSTEP_EVENT(on_substep_end));
    });
  } else {
    for (int64_t i = 0; i < micro_batches; ++i) {
      const bool last = i + 1 == micro_batches;
      const auto guard = last ? nullptr : parts.engine->no_sync();
      at::manual_seed(random_key(
          {arguments.seed, static_cast<uint64_t>(group.rank()), global_step, static_cast<uint64_t>(i)}));
      run_pass(steps.front(), i, step_samples);
      if (!last) call(LOCKSTEP_EVENT(on_substep_end));
    }
  }
  std::vector<double> loss_sums, counts;
  double tokens = 0;
  for (const RankStep& step : steps) {
    loss_sums.push_back(step.loss_sum);
    counts.push_back(step.count);
    tokens += step.tokens;
  }
  const double loss_sum = tree_sum(loss_sums), count = tree_sum(counts);
  const auto limit = arguments.time_limit();
  const bool time_is_over = limit && Clock::now() - start > *limit;
  // Without checkpoints there is nothing to stop with; what a loop around this one has caught is its own.
  const int signal = checkpoints ? stop_signal() : 0;
  const auto saving = checkpoints ? checkpoints->numbers() : std::array<double, Checkpointing::kNumbers>();
  const at::Tensor sums =
      at::tensor({loss_sum, count, time_is_over ? 1.0 : 0.0, signal == SIGINT ? 1.0 : 0.0,
                  signal != 0 && signal != SIGINT ? 1.0 : 0.0, saving[0], saving[1], saving[2], tokens},
                 at::kDouble);
  {
    const timeline::Counted counted(timeline::Kind::collective);
    if (logical != nullptr) {
      logical->all_reduce(sums);
    } else {
      group.all_reduce(sums);
    }
  }
  const auto* total = sums.const_data_ptr<double>();
  if (!std::isfinite(total[0])) refuse_divergence(loss_sum, 0);
  return {.loss_sum = total[0],
          .count = total[1],
          .tokens = total[8],
          .time_is_over = total[2] > 0,
          .stop_signal = total[4] > 0   ? SIGTERM
                         : total[3] > 0 ? SIGINT
                                        : 0,
          .checkpoint = {total[5], total[6], total[7]}};
}

// A sum over the ranks that is not finite is so on all: all come here in the same step.
void Trainer::Impl::refuse_divergence(double own_loss, double norm) {
  const auto refuse = [&](const char* what, double value) {
    throw Error(divergence_text(what, value, state.global_step + 1, group.rank(), module));
  };
  on_all_ranks(group, [&] {
    if (!std::isfinite(own_loss)) refuse("the loss", own_loss);
  });
  on_all_ranks(group, [&] {
    refuse(std::isfinite(norm) ? "the sum of the ranks' losses" : "the norm of the gradients",
           std::isfinite(norm) ? HUGE_VAL : norm);
  });
}

void Trainer::Impl::optimizer_step(Run& run, const StepTotals& totals, int64_t step_samples) {
  const timeline::Counted counted(timeline::Kind::optimizer);
  // From a mean over samples to one over what the losses count.
  const double factor = totals.count > 0 ? static_cast<double>(step_samples) / totals.count : 1;
  progress.grad_norm = scale_and_clip_grad_norm_(run.parameters, factor, arguments.max_grad_norm);
  if (!std::isfinite(*progress.grad_norm)) refuse_divergence(0, *progress.grad_norm);
  progress.learning_rate = run.learning_rate();
  run.position.grad_norm = progress.grad_norm;
  run.position.learning_rate = progress.learning_rate;
  call(LOCKSTEP_EVENT(on_pre_optimizer_step));
  parts.optimizer->step();
  call(LOCKSTEP_EVENT(on_optimizer_step));
  if (run.scheduler) run.scheduler->step();
  module.zero_grad();
  if (ema) ema->update();
  const double loss = totals.count > 0 ? totals.loss_sum / totals.count : 0;
  run.position.loss_since_log += loss;
  run.position.total_loss += loss;
}

void Trainer::Impl::note_progress(const TrainingPlan& plan, int64_t samples, double tokens) {
  const double seconds = seconds_since(start) - seconds_evaluating;
  progress.step = state.global_step;
  progress.epoch = state.epoch;
  progress.samples_done += samples;
  progress.tokens_done += static_cast<int64_t>(tokens);
  progress.samples_per_second = static_cast<double>(progress.samples_done) / seconds;
  progress.seconds_left = seconds / static_cast<double>(state.global_step - first_step) *
                          static_cast<double>(plan.max_steps - state.global_step);
}

void Trainer::Impl::log_and_evaluate(Run& run) {
  agree();
  auto& position = run.position;
  if (std::exchange(control.should_log, false) && state.global_step > position.last_logged_step) {
    progress.loss =
        position.loss_since_log / static_cast<double>(state.global_step - position.last_logged_step);
    position.loss_since_log = 0;
    position.last_logged_step = state.global_step;
    log({{"loss", *progress.loss},
         {"grad_norm", progress.grad_norm.value_or(kUnknown)},
         {"learning_rate", progress.learning_rate.value_or(kUnknown)}});
    bar.log(progress);
    agree();
  } else {
    bar.update(progress);
  }
  if (std::exchange(control.should_evaluate, false) && parts.eval_dataset.size > 0) {
    evaluate_in_training(run);
    agree();
  }
  if (std::exchange(control.should_save, false) && last_saved_step != state.global_step) {
    save_checkpoint(run);
    agree();
  }
}

void Trainer::Impl::evaluate_in_training(Run& run) {
  last_evaluation = evaluate(parts.eval_dataset, "eval", false).metrics;
  last_evaluation["epoch"] = state.epoch;
  last_evaluation_step = state.global_step;
  module.train();
  const bool is_best = note_best(state, arguments, last_evaluation);
  if (run.plateau) run.plateau->step(last_evaluation.at(arguments.best_metric()));
  if (!is_best || !checkpoints) return;
  state.best_model_checkpoint.clear();
  if (arguments.save_strategy == SaveStrategy::BEST || arguments.load_best_model_at_end) {
    control.should_save = true;
    last_saved_step = -1;  // what is there of this step does not know yet that it is the best
  }
}

// What this process trains on in the rest of the epoch.
std::vector<RankData> Trainer::Impl::deal(const Run& run) {
  const auto& plan = run.plan;
  const int64_t batch_size = arguments.per_device_train_batch_size;
  auto order = run.sampler.indices();
  if (plan.is_limited) order.resize(static_cast<size_t>(plan.samples_per_epoch));
  const int64_t done = run.position.update_steps_done * plan.gradient_accumulation_steps * batch_size;
  const auto* logical = parts.engine->logical_ranks();
  const std::vector<int> own = logical != nullptr ? logical->own() : std::vector<int>{group.rank()};
  const int loaders = static_cast<int>(own.size());
  std::vector<RankData> ranks;
  for (const int rank : own) {
    auto dealt = deal_epoch(order, data_ranks(), rank, batch_size, arguments.dataloader_drop_last);
    const auto skipped = std::min<int64_t>(done, static_cast<int64_t>(dealt.indices.size()));
    Loader<Batch> loader({dealt.indices.begin() + skipped, dealt.indices.end()}, parts.train_dataset.collate,
                         {.batch_size = batch_size,
                          .num_workers = (arguments.dataloader_num_workers + loaders - 1) / loaders,
                          .prefetch_factor = arguments.dataloader_prefetch_factor});
    ranks.push_back({std::move(dealt), std::move(loader)});
  }
  return ranks;
}

void Trainer::Impl::run_epoch(Run& run, int64_t epoch) {
  const auto& plan = run.plan;
  run.sampler.set_epoch(epoch);
  control.should_epoch_stop = false;
  call(LOCKSTEP_EVENT(on_epoch_begin));
  agree();
  const int64_t batch_size = arguments.per_device_train_batch_size;
  int64_t micro_batches_done = run.position.update_steps_done * plan.gradient_accumulation_steps;
  auto ranks = deal(run);
  for (auto& i = run.position.update_steps_done;
       i < plan.update_steps_per_epoch && !control.should_training_stop && !control.should_epoch_stop;) {
    const bool epoch_ends = i + 1 == plan.update_steps_per_epoch;
    std::vector<RankStep> steps;
    {
      const timeline::Span span("data", timeline::Kind::data);
      const timeline::Counted counted(timeline::Kind::data);
      for (auto& [dealt, loader] : ranks) {
        RankStep& step = steps.emplace_back();
        step.last_is_substitute = epoch_ends && dealt.last_is_substitute;
        for (int64_t k = 0; k < plan.micro_batches_of(i); ++k) step.micro_batches.push_back(*loader.next());
      }
    }
    if (parts.on_samples) {
      std::vector<int64_t> samples;
      for (const auto& [dealt, loader] : ranks) {
        const auto first = dealt.indices.begin() + micro_batches_done * batch_size;
        const auto last = epoch_ends ? dealt.indices.end() - (dealt.last_is_substitute ? 1 : 0)
                                     : first + plan.micro_batches_of(i) * batch_size;
        samples.insert(samples.end(), first, last);
      }
      parts.on_samples(state.global_step + 1, samples);
    }
    call(LOCKSTEP_EVENT(on_step_begin));
    const auto totals = accumulate(std::move(steps), plan.samples_of(i));
    optimizer_step(run, totals, plan.samples_of(i));
    micro_batches_done += plan.micro_batches_of(i);
    ++state.global_step;
    state.epoch = static_cast<double>(epoch) +
                  static_cast<double>(micro_batches_done) / static_cast<double>(plan.micro_batches_per_epoch);
    note_progress(plan, plan.samples_of(i), totals.tokens);
    ++i;
    if (checkpoints) checkpoints->advance(totals.checkpoint.data());
    if (totals.time_is_over || totals.stop_signal != 0) {
      control.should_training_stop = control.should_save = true;
    }
    call(LOCKSTEP_EVENT(on_step_end));
    log_and_evaluate(run);
    if (totals.stop_signal != 0) end_run(totals.stop_signal);
  }
  call(LOCKSTEP_EVENT(on_epoch_end));
  agree();
  if (run.position.update_steps_done == plan.update_steps_per_epoch || !control.should_training_stop) {
    // What is saved from here on begins with the next epoch.
    run.position.epoch = epoch + 1;
    run.position.update_steps_done = 0;
  }
  log_and_evaluate(run);
}

// Asked to stop: the ranks have agreed on it, and a checkpoint is on its way.
void Trainer::Impl::end_run(int stop_signal) {
  checkpoints->finish();
  bar.finish();
  const char* const name = stop_signal == SIGINT ? "SIGINT" : "SIGTERM or SIGUSR1";
  const bool can_resume = !arguments.save_only_model;
  const std::string text =
      fmt::format("stopped by {} after step {}; {} is saved{}", name, state.global_step,
                  checkpoint::checkpoint_name(state.global_step),
                  can_resume ? ": --resume-from-checkpoint auto continues"
                             : ", the model only (save_only_model), from which training cannot be resumed");
  bar.message(text);
  call_train_end();
  throw ReportedError(text, can_resume ? stop_exit_code(stop_signal) : 128 + stop_signal);
}

}  // namespace lockstep
