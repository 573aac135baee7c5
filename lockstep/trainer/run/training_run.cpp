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
#include "lockstep/trainer/best_metric.h"
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

/// Runs a part that changes no weights, again if a rank dies. `body` returns whether it communicates.
void repeat(std::optional<RunRecovery>& recovery, const std::function<bool()>& body) {
  if (recovery) return recovery->repeat(body);
  body();
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
      now_{.best = BestModel(start.state),
           .position = start.position,
           .control = {.should_training_stop = start.state.global_step >= plan_.max_steps},
           .progress = {.step = start.state.global_step,
                        .total_steps = plan_.max_steps,
                        .epoch = start.state.epoch,
                        .learning_rate = start.position.learning_rate,
                        .grad_norm = start.position.grad_norm},
           .last_saved_step = resumed ? start.state.global_step : -1},
      sampler_(make_sampler(trainer.parts.train_dataset, now_.position, arguments_)),
      parameters_(parameters(module_)),
      callbacks_(trainer.parts.callbacks),
      first_step_(start.state.global_step),
      is_resumed_(resumed.has_value()),
      resumed_(std::move(resumed)) {
  callbacks_.insert(callbacks_.begin(), std::make_shared<DefaultFlow>(plan_));
  const auto& history = start.state.log_history;
  if (!history.empty() && history.back().values.contains("eval_loss") && history.back().step == first_step_) {
    now_.evaluation = history.back().values;
    now_.evaluation_step = first_step_;
    now_.evaluation["epoch"] = start.state.epoch;
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
  on_all_ranks(group_, [&] {
    // A new process goes on with those of the one before, where it stands.
    if (!is_replacement())
      trainer_.run_log.begin(arguments_, resumed_ ? &resumed_->state.log_history : nullptr);
  });
  trainer_.is_tracked = true;
  if (!arguments_.saves()) return;
  checkpoints_.emplace(arguments_, group_,
                       [this](const std::string& line) {  // of a checkpoint that has failed
                         now_.best.forget_save(state_);
                         trainer_.bar.message(line);
                       });
  if (!resumed_) return;
  // Behind the constructor of checkpoints_, which gives replaced ones their names back.
  on_all_ranks(group_, [&] {
    if (group_.rank() != 0 || is_replacement()) return;
    for (const auto& name : set_aside_later(arguments_, first_step_))
      trainer_.bar.message(fmt::format("{}: of the continuation that this one replaces", name));
  });
}

// Returns whether it communicates.
bool TrainingRun::begin() {
  module_.train();
  module_.zero_grad();  // what was there before, of a training that failed for one, is not of the first step
  now_.start = monotonic_seconds();
  trainer_.call(LOCKSTEP_EVENT(on_train_begin));
  bool communicates = agree();
  if (resumed_) {
    on_all_ranks(group_, [&] { load_callbacks(checkpointed(), *resumed_); });
    const std::string path = resumed_->checkpoint.path().string();
    trainer_.bar.message(
        fmt::format("resuming from {}, step {}/{}", path, state_.global_step, state_.max_steps));
    if (state_.global_step >= state_.max_steps) {
      trainer_.bar.message(fmt::format(
          "warning: nothing left to train: {} is after step {}, and the run has {}; for more steps raise "
          "max_steps or num_train_epochs",
          path, state_.global_step, state_.max_steps));
    }
    communicates = true;
  }
  if (!arguments_.eval_on_start || first_step_ != 0) return communicates;
  trainer_.evaluate(trainer_.parts.eval_dataset, "eval", Trainer::Impl::Keep::metrics);
  agree();
  module_.train();
  return true;
}

// --- epochs and steps

Metrics TrainingRun::run() {
  if (can_replace_ranks() && group_.size() > 1) {
    recovery_.emplace(RecoveredRun{.group = group_,
                                   .module = module_,
                                   .state = state_,
                                   .bar = trainer_.bar,
                                   .run_log = trainer_.run_log,
                                   .seed = arguments_.seed,
                                   .progress = now_,
                                   .optimizer = *optimizer_,
                                   .schedule = *schedule_,
                                   .average = average(),
                                   .checkpoints = checkpoints_,
                                   .callbacks = callbacks_,
                                   .context = [this] { return context(); },
                                   .healed =
                                       [this] {
                                         data_.reset();
                                         module_.train();
                                         guard_.emplace(arguments_, group_, [this] { return replica(); });
                                       }});
  }
  try {
    while (now_.part != RunPart::end) run_part();
  } catch (...) {
    recovery_.reset();  // who fails is not replaced
    throw;
  }
  recovery_.reset();
  trainer_.bar.finish();
  if (checkpoints_) checkpoints_->finish();  // the check may throw
  guard_->check(state_.global_step);
  end_checkpoints();
  const auto steps =
      static_cast<double>(std::max<int64_t>(state_.global_step, 1));  // stopped before the first
  Metrics metrics{
      {"train_loss", now_.position.total_loss / steps}, {"epoch", state_.epoch}, {"total_flos", 0}};
  add_speed(metrics, "train", monotonic_seconds() - now_.start,
            static_cast<double>(now_.progress.samples_done),
            static_cast<double>(state_.global_step - first_step_));
  trainer_.log(metrics);
  if (now_.is_out_of_time && state_.global_step < plan_.max_steps)
    trainer_.run_log.end({.stopped_by = "max_time"});
  call_train_end();
  return metrics;
}

// What a part does is told by its state alone: a new process in the place of a rank that died begins with any of them.
void TrainingRun::run_part() {
  switch (now_.part) {
    case RunPart::begin:
      repeat(recovery_, [this] {
        const bool communicates = begin();
        now_.part = now_.next_epoch(plan_);
        return communicates;
      });
      resumed_.reset();
      break;
    case RunPart::epoch_begin:
      data_.reset();
      repeat(recovery_, [this] {
        sampler_.set_epoch(now_.position.epoch);
        now_.control.should_epoch_stop = false;
        trainer_.call(LOCKSTEP_EVENT(on_epoch_begin));
        const bool communicates = agree();
        now_.part = now_.next_step(plan_);
        return communicates;
      });
      break;
    case RunPart::step:
      run_step();
      break;
    case RunPart::after_step:
      repeat(recovery_, [this] {
        trainer_.call(LOCKSTEP_EVENT(on_step_end));
        const bool compares = guard_->after_step(state_.global_step);
        const bool communicates = log_and_evaluate();
        now_.part = now_.next_step(plan_);
        return compares || communicates;
      });
      if (now_.signal != 0) stop_for(now_.signal);
      break;
    case RunPart::epoch_end:
      data_.reset();
      repeat(recovery_, [this] { return end_epoch(); });
      break;
    case RunPart::end:
      break;
  }
}

EpochData& TrainingRun::data() {
  if (data_) return *data_;
  sampler_.set_epoch(now_.position.epoch);
  auto& engine = *trainer_.parts.engine;
  return data_.emplace(sampler_.indices(), now_.position.update_steps_done,
                       EpochData::Options{.dataset = trainer_.parts.train_dataset,
                                          .plan = plan_,
                                          .batch_size = arguments_.per_device_train_batch_size,
                                          .drop_last = arguments_.dataloader_drop_last,
                                          .num_workers = arguments_.dataloader_num_workers,
                                          .prefetch_factor = arguments_.dataloader_prefetch_factor,
                                          .ranks = data_ranks(engine, group_),
                                          .own = own_data_ranks(engine, group_)});
}

bool TrainingRun::end_epoch() {
  const int64_t epoch = now_.position.epoch;
  trainer_.call(LOCKSTEP_EVENT(on_epoch_end));
  agree();
  if (now_.position.update_steps_done == plan_.update_steps_per_epoch || !now_.control.should_training_stop) {
    // What is saved from here on begins with the next epoch.
    now_.position.epoch = epoch + 1;
    now_.position.update_steps_done = 0;
  }
  const bool communicates = log_and_evaluate();
  now_.part = now_.next_epoch(plan_);
  return communicates;
}

void TrainingRun::run_step() {
  data();  // an error in it is not one of a step
  StepSums sums;
  const auto body = [&] {
    const int64_t samples = plan_.samples_of(now_.position.update_steps_done);
    auto steps = data().next_step();
    if (trainer_.parts.on_samples) trainer_.parts.on_samples(state_.global_step + 1, data_->samples());
    trainer_.call(LOCKSTEP_EVENT(on_step_begin));
    sums = accumulate(std::move(steps), samples);
    step_optimizer(sums, samples);
    if (recovery_) end_step(sums);  // a part of what the others get if a rank dies before they are here
  };
  if (recovery_) {
    recovery_->step(body);
  } else {
    as_one_step(group_, body);
    end_step(sums);
  }
}

void TrainingRun::end_step(const StepSums& sums) {
  const int64_t i = now_.position.update_steps_done;  // the step's number in the epoch
  const int64_t micro_batches_done = i * plan_.gradient_accumulation_steps + plan_.micro_batches_of(i);
  ++state_.global_step;
  state_.epoch = static_cast<double>(now_.position.epoch) +
                 static_cast<double>(micro_batches_done) / static_cast<double>(plan_.micro_batches_per_epoch);
  const double seconds = monotonic_seconds() - now_.start - now_.seconds_evaluating;
  now_.progress.step = state_.global_step;
  now_.progress.epoch = state_.epoch;
  now_.progress.samples_done += plan_.samples_of(i);
  now_.progress.tokens_done += static_cast<int64_t>(sums.tokens);
  now_.progress.samples_per_second = static_cast<double>(now_.progress.samples_done) / seconds;
  now_.progress.seconds = monotonic_seconds() - now_.start;
  now_.progress.seconds_left = seconds / static_cast<double>(state_.global_step - first_step_) *
                               static_cast<double>(plan_.max_steps - state_.global_step);
  ++now_.position.update_steps_done;
  if (checkpoints_) checkpoints_->advance(sums.checkpoint);
  now_.signal = sums.terminated > 0 ? SIGTERM : sums.warned > 0 ? SIGUSR1 : sums.interrupted > 0 ? SIGINT : 0;
  if (sums.out_of_time > 0) now_.is_out_of_time = true;
  if (now_.is_out_of_time || now_.signal != 0)
    now_.control.should_training_stop = now_.control.should_save = true;
  now_.part = RunPart::after_step;
}

void as_one_step(const ProcessGroup& group, const std::function<void()>& body) {
  as_one_step([&] { step(group, body); });
}

void as_one_step(const std::function<void()>& step) {
  try {
    step();
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
  if (limit && std::chrono::duration<double>(monotonic_seconds() - now_.start) > *limit) sums.out_of_time = 1;
  if (checkpoints_) {
    // Without checkpoints there is nothing to stop with; what a loop around this one has caught is its own.
    switch (stop_signal()) {
      case SIGINT:
        sums.interrupted = 1;
        break;
      case SIGUSR1:
        sums.warned = 1;
        break;
      case SIGTERM:
        sums.terminated = 1;
        break;
      default:
        break;
    }
    sums.checkpoint = checkpoints_->vote();
  }
  {
    const timeline::Counted counted(timeline::Kind::collective);
    sum_over_ranks(sums, [&](const at::Tensor& all) { all_reduce_data_ranks(engine, group_, all); });
  }
  if (!std::isfinite(sums.loss)) refuse_divergence(own_loss, 0, state_.global_step + 1, group_, module_);
  return sums;
}

void TrainingRun::step_optimizer(const StepSums& sums, int64_t step_samples) {
  const timeline::Counted counted(timeline::Kind::optimizer);
  // From a mean over samples to one over what the losses count.
  const double factor = sums.count > 0 ? static_cast<double>(step_samples) / sums.count : 1;
  now_.progress.grad_norm = scale_and_clip_grad_norm_(parameters_, factor, arguments_.max_grad_norm);
  if (!std::isfinite(*now_.progress.grad_norm))
    refuse_divergence(0, *now_.progress.grad_norm, state_.global_step + 1, group_, module_);
  now_.progress.learning_rate = schedule_->learning_rate();
  now_.position.grad_norm = now_.progress.grad_norm;
  now_.position.learning_rate = now_.progress.learning_rate;
  trainer_.call(LOCKSTEP_EVENT(on_pre_optimizer_step));
  optimizer_->step();
  trainer_.call(LOCKSTEP_EVENT(on_optimizer_step));
  schedule_->step();
  module_.zero_grad();
  if (average_) average_->update();
  const double loss = sums.count > 0 ? sums.loss / sums.count : 0;
  now_.position.loss_since_log += loss;
  now_.position.total_loss += loss;
}

// --- what is due behind a step or an epoch

CallbackContext TrainingRun::context() {
  return {.args = arguments_,
          .state = state_,
          .control = now_.control,
          .model = module_,
          .optimizer = optimizer_.get(),
          .group = group_,
          .progress = now_.progress};
}

// Behind what may have set flags on one rank, and before all act on them.
bool TrainingRun::agree() {
  if (trainer_.parts.callbacks.empty()) return false;
  agree_on(now_.control, group_);
  return true;
}

// Returns whether it has communicated.
bool TrainingRun::log_and_evaluate() {
  bool communicates = agree();
  if (std::exchange(now_.control.should_log, false) && state_.global_step > now_.position.last_logged_step) {
    now_.progress.loss = now_.position.loss_since_log /
                         static_cast<double>(state_.global_step - now_.position.last_logged_step);
    now_.position.loss_since_log = 0;
    now_.position.last_logged_step = state_.global_step;
    trainer_.log({{"loss", *now_.progress.loss},
                  {"grad_norm", now_.progress.grad_norm.value_or(kUnknown)},
                  {"learning_rate", now_.progress.learning_rate.value_or(kUnknown)}});
    trainer_.bar.log(now_.progress);
    agree();
    communicates = true;  // a line of the log is taken back if the others repeat this part
  } else {
    trainer_.bar.update(now_.progress);
  }
  if (std::exchange(now_.control.should_evaluate, false) && trainer_.parts.eval_dataset.size > 0) {
    evaluate();
    agree();
    communicates = true;
  }
  if (std::exchange(now_.control.should_save, false) && now_.last_saved_step != state_.global_step) {
    save_checkpoint();
    agree();
    communicates = true;
  }
  return communicates;
}

void TrainingRun::evaluate() {
  now_.evaluation =
      trainer_.evaluate(trainer_.parts.eval_dataset, "eval", Trainer::Impl::Keep::metrics).metrics;
  now_.evaluation_step = state_.global_step;
  now_.evaluation["epoch"] = state_.epoch;
  module_.train();
  const bool is_best = note_best(state_, arguments_, now_.evaluation);
  schedule_->evaluated(now_.evaluation);
  if (!is_best || !checkpoints_) return;
  state_.best_model_checkpoint.clear();
  if (keeps_best_model(arguments_)) {
    now_.control.should_save = true;
    now_.last_saved_step = -1;  // what is there of this step does not know yet that it is the best
  }
}

Metrics TrainingRun::last_evaluation() const {
  return now_.evaluation_step == state_.global_step ? now_.evaluation : Metrics();
}

void TrainingRun::save_checkpoint() {
  if (!checkpoints_) return;
  auto snapshot = checkpoints_->snapshot();  // the one before is complete now, or has failed
  guard_->check(state_.global_step);         // no file is made of replicas that differ
  now_.best.complete_save();
  const std::string name = checkpoint::checkpoint_name(state_.global_step);
  if (state_.best_global_step == state_.global_step) {
    state_.best_model_checkpoint = (arguments_.output_dir / name).string();
    if (keeps_best_model(arguments_)) now_.best.begin_save(state_);
  }
  on_all_ranks(group_, [&] { add_files(checkpointed(), state_, now_.position, snapshot); });
  std::set<std::string> kept;
  if (keeps_best_model(arguments_) && !state_.best_model_checkpoint.empty()) {
    kept.insert(std::filesystem::path(state_.best_model_checkpoint).filename().string());
  }
  // A new process in the place of a rank begins with it.
  if (recovery_ && is_resumed_) kept.insert(checkpoint::checkpoint_name(first_step_));
  checkpoints_->begin(state_.global_step, std::move(snapshot), std::move(kept));
  // A process that dies has taken what it had not written with it.
  if (recovery_) checkpoints_->complete();
  now_.last_saved_step = state_.global_step;
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
  const std::string stopped =
      fmt::format("stopped by {} after step {}", stop_signal_name(signal), state_.global_step);
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
  keep_stop_signals_caught();  // this rank's own may still come
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
  if (state_.best_global_step != state_.global_step) now_.evaluation_step = -1;  // of another model
  trainer_.bar.message(fmt::format("loaded the best model, {}: {} {:.6g}", state_.best_model_checkpoint,
                                   arguments_.best_metric(), *state_.best_metric));
}

// The callbacks find the model that is saved and evaluated.
void TrainingRun::call_train_end() {
  const auto averaged = ema_scope(average());
  trainer_.call(LOCKSTEP_EVENT(on_train_end));
}

}  // namespace lockstep::detail
