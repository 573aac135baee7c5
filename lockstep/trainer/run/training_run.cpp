#include "lockstep/trainer/run/training_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/job/stop_signals.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/parallel/parameters.h"
#include "lockstep/step/step.h"
#include "lockstep/timeline/totals.h"
#include "lockstep/trainer/divergence.h"
#include "lockstep/trainer/ema_scope.h"
#include "lockstep/trainer/flow.h"
#include "lockstep/trainer/output/output_dir.h"
#include "lockstep/trainer/output/summary.h"
#include "lockstep/trainer/run/passes.h"
#include "lockstep/trainer/run/trainer_impl.h"
#include "lockstep/trainer/sums.h"

namespace lockstep::detail {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

TrainSampler make_sampler(const Dataset& dataset, const TrainingPosition& position,
                          const TrainingArguments& arguments) {
  const bool keeps_order = arguments.overfit_batches > 0;
  return TrainSampler(
      dataset.size,
      {.strategy = keeps_order ? TrainSamplingStrategy::sequential : arguments.train_sampling_strategy,
       .batch_size = position.sampler_batch_size,
       .gradient_accumulation_steps = position.sampler_accumulation_steps,
       .seed = arguments.sampling_seed()},
      dataset.lengths);
}

}  // namespace

// --- before the first step

TrainingRun::TrainingRun(Trainer::Impl& trainer, std::optional<ResumePoint> resumed)
    : TrainingRun(trainer, find_start(trainer.parts, resumed, trainer.bar), std::move(resumed)) {}

TrainingRun::TrainingRun(Trainer::Impl& trainer, RunStart start, std::optional<ResumePoint>&& resumed)
    : trainer_(trainer),
      arguments_(trainer.arguments),
      group_(trainer.group),
      module_(trainer.module),
      state_(trainer.state),
      plan_(start.plan),
      record_(std::move(start.record)),
      position_(start.position),
      sampler_(make_sampler(trainer.parts.train_dataset, position_, arguments_)),
      parameters_(parameters(module_)),
      callbacks_(trainer.parts.callbacks),
      best_(start.state),
      control_{.should_training_stop = start.state.global_step >= plan_.max_steps},
      progress_{.step = start.state.global_step,
                .total_steps = plan_.max_steps,
                .epoch = start.state.epoch,
                .learning_rate = position_.learning_rate,
                .grad_norm = position_.grad_norm},
      first_step_(start.state.global_step),
      last_saved_step_(resumed ? start.state.global_step : -1),
      resumed_(std::move(resumed)) {
  callbacks_.insert(callbacks_.begin(), std::make_shared<DefaultFlow>(plan_));
  const auto& history = start.state.log_history;
  if (!history.empty() && history.back().values.contains("eval_loss") && history.back().step == first_step_) {
    last_evaluation_ = {.metrics = history.back().values, .step = first_step_};
    last_evaluation_.metrics["epoch"] = start.state.epoch;
  }
  on_all_ranks(group_, [&] {
    if (!arguments_.reduces_lr_on_plateau()) arguments_.lr_schedule(plan_.max_steps);  // names mistakes
  });
  optimizer_ = trainer.begin_optimizer();
  schedule_.emplace(*optimizer_, arguments_, plan_.max_steps);
  if (arguments_.ema_decay > 0) average_.emplace(module_, arguments_.ema_decay, /*use_buffers=*/true);
  if (resumed_) on_all_ranks(group_, [&] { load_files(checkpointed(), *resumed_); });
  begin_files();  // a run that cannot begin or go on writes nothing
  guard_.emplace(arguments_, group_, [this] { return replica(); });
  state_ = std::move(start.state);
}

void TrainingRun::begin_files() {
  on_all_ranks(
      group_, [&] { trainer_.run_log.begin(arguments_, resumed_ ? &resumed_->state.log_history : nullptr); });
  trainer_.is_tracked = true;
  if (!arguments_.saves()) return;
  checkpoints_.emplace(arguments_, group_,
                       [this](const std::string& line) {  // of a checkpoint that has failed
                         best_.forget_save(state_);
                         trainer_.bar.message(line);
                       });
  if (!resumed_) return;
  // Behind the constructor of checkpoints_, which gives replaced ones their names back.
  on_all_ranks(group_, [&] {
    if (group_.rank() != 0) return;
    for (const auto& name : set_aside_later(arguments_, first_step_))
      trainer_.bar.message(fmt::format("{}: of the continuation that this one replaces", name));
  });
}

void TrainingRun::begin() {
  module_.train();
  module_.zero_grad();  // what was there before, of a training that failed for one, is not of the first step
  start_ = monotonic_seconds();
  trainer_.call(LOCKSTEP_EVENT(on_train_begin));
  agree();
  if (resumed_) resume(*resumed_);
  resumed_.reset();
}

void TrainingRun::resume(const ResumePoint& from) {
  on_all_ranks(group_, [&] { load_callbacks(checkpointed(), from); });
  const std::string path = from.checkpoint.path().string();
  trainer_.bar.message(
      fmt::format("resuming from {}, step {}/{}", path, state_.global_step, state_.max_steps));
  if (state_.global_step < state_.max_steps) return;
  trainer_.bar.message(fmt::format(
      "warning: nothing left to train: {} is after step {}, and the run has {}; for more steps raise "
      "max_steps or num_train_epochs",
      path, state_.global_step, state_.max_steps));
}

// --- epochs and steps

Metrics TrainingRun::run() {
  begin();
  if (arguments_.eval_on_start && first_step_ == 0) {
    trainer_.evaluate(trainer_.parts.eval_dataset, "eval", Trainer::Impl::Keep::metrics);
    agree();
    module_.train();
  }
  while (position_.epoch < plan_.num_train_epochs && !control_.should_training_stop) run_epoch();
  trainer_.bar.finish();
  if (checkpoints_) checkpoints_->finish();  // the check may throw
  guard_->check(state_.global_step);
  end_checkpoints();
  const auto steps =
      static_cast<double>(std::max<int64_t>(state_.global_step, 1));  // stopped before the first
  Metrics metrics{{"train_loss", position_.total_loss / steps}, {"epoch", state_.epoch}, {"total_flos", 0}};
  add_speed(metrics, "train", monotonic_seconds() - start_, static_cast<double>(progress_.samples_done),
            static_cast<double>(state_.global_step - first_step_));
  trainer_.log(metrics);
  if (is_out_of_time_ && state_.global_step < plan_.max_steps)
    trainer_.run_log.end({.stopped_by = "max_time"});
  call_train_end();
  return metrics;
}

void TrainingRun::run_epoch() {
  const int64_t epoch = position_.epoch;
  sampler_.set_epoch(epoch);
  control_.should_epoch_stop = false;
  trainer_.call(LOCKSTEP_EVENT(on_epoch_begin));
  agree();
  auto& engine = *trainer_.parts.engine;
  EpochData data(sampler_.indices(), position_.update_steps_done,
                 {.dataset = trainer_.parts.train_dataset,
                  .plan = plan_,
                  .batch_size = arguments_.per_device_train_batch_size,
                  .drop_last = arguments_.dataloader_drop_last,
                  .num_workers = arguments_.dataloader_num_workers,
                  .prefetch_factor = arguments_.dataloader_prefetch_factor,
                  .ranks = data_ranks(engine, group_),
                  .own = own_data_ranks(engine, group_)});
  while (position_.update_steps_done < plan_.update_steps_per_epoch && !control_.should_training_stop &&
         !control_.should_epoch_stop) {
    run_step(data);
  }
  trainer_.call(LOCKSTEP_EVENT(on_epoch_end));
  agree();
  if (position_.update_steps_done == plan_.update_steps_per_epoch || !control_.should_training_stop) {
    // What is saved from here on begins with the next epoch.
    position_.epoch = epoch + 1;
    position_.update_steps_done = 0;
  }
  log_and_evaluate();
}

void TrainingRun::run_step(EpochData& data) {
  const int64_t i = position_.update_steps_done;  // the step's number in the epoch
  const int64_t samples = plan_.samples_of(i);
  StepSums sums;
  as_one_step(group_, [&] {
    auto steps = data.next_step();
    if (trainer_.parts.on_samples) trainer_.parts.on_samples(state_.global_step + 1, data.samples());
    trainer_.call(LOCKSTEP_EVENT(on_step_begin));
    sums = accumulate(std::move(steps), samples);
    step_optimizer(sums, samples);
  });
  const int64_t micro_batches_done = i * plan_.gradient_accumulation_steps + plan_.micro_batches_of(i);
  ++state_.global_step;
  state_.epoch = static_cast<double>(position_.epoch) +
                 static_cast<double>(micro_batches_done) / static_cast<double>(plan_.micro_batches_per_epoch);
  note_progress(samples, sums.tokens);
  ++position_.update_steps_done;
  if (checkpoints_) checkpoints_->advance(sums.checkpoint);
  const int signal = sums.terminated > 0 ? SIGTERM : sums.interrupted > 0 ? SIGINT : 0;
  if (sums.out_of_time > 0) is_out_of_time_ = true;
  if (is_out_of_time_ || signal != 0) control_.should_training_stop = control_.should_save = true;
  trainer_.call(LOCKSTEP_EVENT(on_step_end));
  guard_->after_step(state_.global_step);
  log_and_evaluate();
  if (signal != 0) stop_for(signal);
}

void as_one_step(const ProcessGroup& group, const std::function<void()>& body) {
  try {
    step(group, body);
  } catch (const StepFailedError& error) {
    try {
      std::rethrow_if_nested(error);
    } catch (const std::exception&) {
      throw;
    } catch (...) {  // nobody above could print it; the step's error says whose it is
    }
    throw;
  }
}

// Forward and backward of a step's micro-batches, and then what all ranks have found.
StepSums TrainingRun::accumulate(std::vector<RankStep> steps, int64_t step_samples) {
  auto& engine = *trainer_.parts.engine;
  StepSums sums = run_passes(engine, std::move(steps),
                             {.step = static_cast<uint64_t>(state_.global_step),
                              .step_samples = step_samples,
                              .seed = arguments_.seed,
                              .rank = group_.rank(),
                              .bf16 = arguments_.bf16,
                              .on_substep_end = [this] { trainer_.call(LOCKSTEP_EVENT(on_substep_end)); }});
  const double own_loss = sums.loss;
  const auto limit = arguments_.time_limit();
  if (limit && std::chrono::duration<double>(monotonic_seconds() - start_) > *limit) sums.out_of_time = 1;
  if (checkpoints_) {
    // Without checkpoints there is nothing to stop with; what a loop around this one has caught is its own.
    const int signal = stop_signal();
    if (signal != 0) (signal == SIGINT ? sums.interrupted : sums.terminated) = 1;
    sums.checkpoint = checkpoints_->vote();
  }
  {
    const timeline::Counted counted(timeline::Kind::collective);
    all_reduce_data_ranks(engine, group_, as_tensor(sums));
  }
  if (!std::isfinite(sums.loss)) refuse_divergence(own_loss, 0, state_.global_step + 1, group_, module_);
  return sums;
}

void TrainingRun::step_optimizer(const StepSums& sums, int64_t step_samples) {
  const timeline::Counted counted(timeline::Kind::optimizer);
  // From a mean over samples to one over what the losses count.
  const double factor = sums.count > 0 ? static_cast<double>(step_samples) / sums.count : 1;
  progress_.grad_norm = scale_and_clip_grad_norm_(parameters_, factor, arguments_.max_grad_norm);
  if (!std::isfinite(*progress_.grad_norm))
    refuse_divergence(0, *progress_.grad_norm, state_.global_step + 1, group_, module_);
  progress_.learning_rate = schedule_->learning_rate();
  position_.grad_norm = progress_.grad_norm;
  position_.learning_rate = progress_.learning_rate;
  trainer_.call(LOCKSTEP_EVENT(on_pre_optimizer_step));
  optimizer_->step();
  trainer_.call(LOCKSTEP_EVENT(on_optimizer_step));
  schedule_->step();
  module_.zero_grad();
  if (average_) average_->update();
  const double loss = sums.count > 0 ? sums.loss / sums.count : 0;
  position_.loss_since_log += loss;
  position_.total_loss += loss;
}

void TrainingRun::note_progress(int64_t samples, double tokens) {
  const double seconds = monotonic_seconds() - start_ - seconds_evaluating_;
  progress_.step = state_.global_step;
  progress_.epoch = state_.epoch;
  progress_.samples_done += samples;
  progress_.tokens_done += static_cast<int64_t>(tokens);
  progress_.samples_per_second = static_cast<double>(progress_.samples_done) / seconds;
  progress_.seconds = monotonic_seconds() - start_;
  progress_.seconds_left = seconds / static_cast<double>(state_.global_step - first_step_) *
                           static_cast<double>(plan_.max_steps - state_.global_step);
}

// --- what is due behind a step or an epoch

CallbackContext TrainingRun::context() {
  return {.args = arguments_,
          .state = state_,
          .control = control_,
          .model = module_,
          .optimizer = optimizer_.get(),
          .group = group_,
          .progress = progress_};
}

// Behind what may have set flags on one rank, and before all act on them.
void TrainingRun::agree() {
  if (!trainer_.parts.callbacks.empty()) agree_on(control_, group_);
}

void TrainingRun::log_and_evaluate() {
  agree();
  if (std::exchange(control_.should_log, false) && state_.global_step > position_.last_logged_step) {
    progress_.loss =
        position_.loss_since_log / static_cast<double>(state_.global_step - position_.last_logged_step);
    position_.loss_since_log = 0;
    position_.last_logged_step = state_.global_step;
    trainer_.log({{"loss", *progress_.loss},
                  {"grad_norm", progress_.grad_norm.value_or(kUnknown)},
                  {"learning_rate", progress_.learning_rate.value_or(kUnknown)}});
    trainer_.bar.log(progress_);
    agree();
  } else {
    trainer_.bar.update(progress_);
  }
  if (std::exchange(control_.should_evaluate, false) && trainer_.parts.eval_dataset.size > 0) {
    evaluate();
    agree();
  }
  if (std::exchange(control_.should_save, false) && last_saved_step_ != state_.global_step) {
    save_checkpoint();
    agree();
  }
}

void TrainingRun::evaluate() {
  last_evaluation_ = {
      .metrics = trainer_.evaluate(trainer_.parts.eval_dataset, "eval", Trainer::Impl::Keep::metrics).metrics,
      .step = state_.global_step};
  last_evaluation_.metrics["epoch"] = state_.epoch;
  module_.train();
  const bool is_best = note_best(state_, arguments_, last_evaluation_.metrics);
  schedule_->evaluated(last_evaluation_.metrics);
  if (!is_best || !checkpoints_) return;
  state_.best_model_checkpoint.clear();
  if (arguments_.save_strategy == SaveStrategy::BEST || arguments_.load_best_model_at_end) {
    control_.should_save = true;
    last_saved_step_ = -1;  // what is there of this step does not know yet that it is the best
  }
}

Metrics TrainingRun::last_evaluation() const {
  return last_evaluation_.step == state_.global_step ? last_evaluation_.metrics : Metrics();
}

void TrainingRun::save_checkpoint() {
  if (!checkpoints_) return;
  auto snapshot = checkpoints_->snapshot();  // the one before is complete now, or has failed
  guard_->check(state_.global_step);         // no file is made of replicas that differ
  best_.complete_save();
  const std::string name = checkpoint::checkpoint_name(state_.global_step);
  if (state_.best_global_step == state_.global_step) {
    state_.best_model_checkpoint = (arguments_.output_dir / name).string();
    if (arguments_.load_best_model_at_end || arguments_.save_strategy == SaveStrategy::BEST)
      best_.begin_save(state_);
  }
  on_all_ranks(group_, [&] { add_files(checkpointed(), state_, position_, snapshot); });
  std::set<std::string> kept;
  if (arguments_.load_best_model_at_end && !state_.best_model_checkpoint.empty()) {
    kept.insert(std::filesystem::path(state_.best_model_checkpoint).filename().string());
  }
  checkpoints_->begin(state_.global_step, std::move(snapshot), std::move(kept));
  last_saved_step_ = state_.global_step;
  trainer_.call(LOCKSTEP_EVENT(on_save));
}

// Buffers count by dtype and shape alone: DistributedDataParallel copies rank 0's before each forward, and with
// ddp_broadcast_buffers false they are each rank's own.
ReplicaItems TrainingRun::replica() const {
  ReplicaItems items;
  items.add_module(module_, {}, /*compare_buffers=*/false);
  items.add_optimizer(*optimizer_, /*skips_unknown=*/true);
  if (average_) items.add_average(average_->state_dict());
  return items;
}

CheckpointedTraining TrainingRun::checkpointed() {
  return {.module = module_,
          .optimizer = *optimizer_,
          .scheduler = schedule_->scheduler(),
          .plateau = schedule_->plateau(),
          .ema = average(),
          .callbacks = callbacks_,
          .arguments = arguments_,
          .group = group_,
          .model_files = trainer_.parts.model_files,
          .record = record_};
}

// --- the end

// Asked to stop: the ranks have agreed on it, and a checkpoint is on its way.
void TrainingRun::stop_for(int signal) {
  checkpoints_->finish();
  trainer_.bar.finish();
  const char* const name = signal == SIGINT ? "SIGINT" : "SIGTERM or SIGUSR1";
  const std::string stopped = fmt::format("stopped by {} after step {}", name, state_.global_step);
  const std::string& failure = checkpoints_->last_failure();
  const bool can_resume = !arguments_.save_only_model;
  const std::string text =
      !failure.empty()
          ? fmt::format("{}, but {}", stopped, failure)
          : fmt::format("{}; {} is saved{}", stopped, checkpoint::checkpoint_name(state_.global_step),
                        can_resume ? ": --resume-from-checkpoint auto continues"
                                   : ", the model only (save_only_model), from which training cannot be "
                                     "resumed");
  trainer_.bar.message(text);
  call_train_end();
  throw ReportedError(text, !failure.empty() ? job::kSaveFailedCode
                            : can_resume     ? stop_exit_code(signal)
                                             : 128 + signal);
}

void TrainingRun::end_checkpoints() {
  if (!checkpoints_) return;
  checkpoints_->finish();
  save_failure_ = checkpoints_->last_failure();
  checkpoints_.reset();
  if (!arguments_.load_best_model_at_end || state_.best_model_checkpoint.empty()) return;
  on_all_ranks(group_, [&] {
    load_model(module_, checkpoint::open(state_.best_model_checkpoint, {.verify = false}));
  });
  // With an average of the weights the checkpoint's model is the average of its step.
  average_.reset();
  if (state_.best_global_step != state_.global_step) last_evaluation_.step = -1;  // of another model
  trainer_.bar.message(fmt::format("loaded the best model, {}: {} {:.6g}", state_.best_model_checkpoint,
                                   arguments_.best_metric(), *state_.best_metric));
}

// The callbacks find the model that is saved and evaluated.
void TrainingRun::call_train_end() {
  const auto averaged = ema_scope(average());
  trainer_.call(LOCKSTEP_EVENT(on_train_end));
}

}  // namespace lockstep::detail
