#include "lockstep/trainer/trainer.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/train_sampler.h"
#include "lockstep/metrics/classification.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/autocast.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/timeline/timeline.h"
#include "lockstep/trainer/divergence.h"
#include "lockstep/trainer/evaluation.h"
#include "lockstep/trainer/output_dir.h"
#include "lockstep/trainer/progress_bar.h"
#include "lockstep/trainer/training_log.h"
#include "lockstep/trainer/training_plan.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double round_to(double value, double scale) { return std::round(value * scale) / scale; }

// Hugging Face's speed_metrics, with its rounding.
void add_speed(Metrics& metrics, const std::string& split, double runtime, double samples, double steps) {
  metrics[split + "_runtime"] = round_to(runtime, 1e4);
  metrics[split + "_samples_per_second"] = round_to(samples / runtime, 1e3);
  metrics[split + "_steps_per_second"] = round_to(steps / runtime, 1e3);
}

// What one call of train() works with.
struct Run {
  TrainingPlan plan;
  TrainSampler sampler;
  FusedAdamW optimizer;
  LRScheduleOptions schedule;
};

}  // namespace

struct Trainer::Impl {
  TrainableModel model;
  TrainingArguments arguments;
  ProcessGroup group;
  TrainerOptions options;
  ProgressBar bar;
  TrainerState state{};
  Progress progress{};
  std::optional<LineFile> log_file{};
  Metrics last_evaluation{};
  bool has_trained = false;  // what output_dir holds is this Trainer's own

  double loss_since_log = 0;  // this rank's share of the sum of the steps' mean losses
  int64_t last_logged_step = 0;
  double total_loss = 0;  // of all ranks
  int64_t samples_done = 0;
  double seconds_evaluating = 0;
  std::optional<double> bad_loss{};  // of this rank in this step, not finite
  Clock::time_point start{};

  Run begin_run();
  void run_epoch(Run& run, int64_t epoch);
  void accumulate(const std::vector<Batch>& micro_batches, int64_t step_samples, bool last_is_substitute);
  void backward(const Batch& batch, double weight);
  void optimizer_step(Run& run);
  void refuse_divergence(double norm);
  void after_step(const TrainingPlan& plan);
  double drain_loss();
  Prediction evaluate(const Dataset& dataset, const std::string& prefix, bool keep_logits);
  void log(Metrics values);
  void begin_output();
  void open_log();
};

void Trainer::Impl::begin_output() {
  if (group.rank() != 0) return;
  if (!has_trained) check_output_dir(arguments.output_dir, arguments.overwrite_output_dir);
  has_trained = true;
  begin_output_dir(arguments.output_dir);
  open_log();
}

void Trainer::Impl::open_log() {
  if (group.rank() != 0) return;
  make_directory(arguments.output_dir);
  log_file.emplace(arguments.output_dir / "log.jsonl", false);
}

void Trainer::Impl::log(Metrics values) {
  state.log_history.push_back({.values = std::move(values), .epoch = state.epoch, .step = state.global_step});
  if (!log_file) open_log();
  if (log_file) log_file->append(to_json_line(state.log_history.back()));
}

// Forward and backward of one micro-batch; `weight` multiplies the sum of its samples' losses.
void Trainer::Impl::backward(const Batch& batch, double weight) {
  at::Tensor logits;
  {
    const AutocastGuard autocast(arguments.bf16);
    logits = model.train_forward(batch);
  }
  const auto loss = at::cross_entropy_loss(logits.to(at::kFloat), batch.labels, {}, at::Reduction::Sum);
  const auto value = loss.item<double>();
  if (!std::isfinite(value)) bad_loss = value;  // refuse_divergence() tells the user, on all ranks together
  loss_since_log += value * weight;
  // DistributedDataParallel averages over the ranks; what is wanted is the sum of the ranks' shares.
  (loss * (weight * group.size())).backward();
}

void Trainer::Impl::accumulate(const std::vector<Batch>& micro_batches, int64_t step_samples,
                               bool last_is_substitute) {
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    const bool last = i + 1 == micro_batches.size();
    const auto guard = last ? nullptr : model.no_sync();
    backward(micro_batches[i], last && last_is_substitute ? 0.0 : 1.0 / static_cast<double>(step_samples));
  }
}

// The average of gradients that are not finite is not finite on any rank: so all come here in the same step.
void Trainer::Impl::refuse_divergence(double norm) {
  const auto refuse = [&](const char* what, double value) {
    throw Error(divergence_text(what, value, state.global_step + 1, group.rank(), *model.module));
  };
  if (std::isfinite(norm)) refuse("the loss", *bad_loss);
  on_all_ranks(group, [&] {
    if (bad_loss) refuse("the loss", *bad_loss);
  });
  on_all_ranks(group, [&] { refuse("the norm of the gradients", norm); });
}

void Trainer::Impl::optimizer_step(Run& run) {
  const bool clips = arguments.max_grad_norm > 0;
  const auto parameters = model.module->parameters();
  const double norm = clips ? clip_grad_norm_(parameters, arguments.max_grad_norm) : grad_norm(parameters);
  if (bad_loss || !std::isfinite(norm)) refuse_divergence(norm);
  const double lr =
      arguments.learning_rate * lr_factor(run.schedule, arguments.learning_rate, state.global_step);
  set_lr(run.optimizer, lr);
  run.optimizer.step();
  run.optimizer.zero_grad();
  progress.grad_norm = norm;
  progress.learning_rate = lr;
}

// Mean loss over the global batches since the last call, from the shares of all ranks.
double Trainer::Impl::drain_loss() {
  const auto sum = at::scalar_tensor(loss_since_log, at::kDouble);
  group.all_reduce(sum);
  loss_since_log = 0;
  const int64_t steps = state.global_step - last_logged_step;
  last_logged_step = state.global_step;
  total_loss += sum.item<double>();
  return steps == 0 ? 0.0 : sum.item<double>() / static_cast<double>(steps);
}

// Progress, logging and evaluation, as Hugging Face's DefaultFlowCallback times them.
void Trainer::Impl::after_step(const TrainingPlan& plan) {
  const double seconds = seconds_since(start) - seconds_evaluating;
  const int64_t step = state.global_step;
  progress.step = step;
  progress.epoch = state.epoch;
  progress.samples_per_second = static_cast<double>(samples_done) / seconds;
  progress.seconds_left = seconds / static_cast<double>(step) * static_cast<double>(plan.max_steps - step);

  const bool epoch_ends = step % plan.update_steps_per_epoch == 0 || step == plan.max_steps;
  const auto due = [&](IntervalStrategy strategy, int64_t interval) {
    return strategy == IntervalStrategy::EPOCH ? epoch_ends
                                               : strategy == IntervalStrategy::STEPS && step % interval == 0;
  };
  if (due(arguments.logging_strategy, state.logging_steps) || (arguments.logging_first_step && step == 1)) {
    progress.loss = drain_loss();
    log({{"loss", *progress.loss},
         {"grad_norm", *progress.grad_norm},
         {"learning_rate", *progress.learning_rate}});
    bar.log(progress);
  } else {
    bar.update(progress);
  }
  const bool last_by_steps = arguments.eval_strategy == IntervalStrategy::STEPS && step == plan.max_steps;
  if (due(arguments.eval_strategy, state.eval_steps) || last_by_steps) {
    Metrics metrics = evaluate(options.eval_dataset, "eval", false).metrics;
    model.module->train();
    if (step == plan.max_steps) {
      last_evaluation = std::move(metrics);
      last_evaluation["epoch"] = state.epoch;
    }
  }
}

void Trainer::Impl::run_epoch(Run& run, int64_t epoch) {
  const auto& plan = run.plan;
  run.sampler.set_epoch(epoch);
  const int64_t batch_size = arguments.per_device_train_batch_size;
  const auto dealt = deal_epoch(run.sampler.indices(), group.size(), group.rank(), batch_size,
                                arguments.dataloader_drop_last);
  Loader<Batch> loader(dealt.indices, options.train_dataset.collate,
                       {.batch_size = batch_size,
                        .num_workers = arguments.dataloader_num_workers,
                        .prefetch_factor = arguments.dataloader_prefetch_factor});
  int64_t micro_batches_done = 0;
  for (int64_t i = 0; i < plan.update_steps_per_epoch && state.global_step < plan.max_steps; ++i) {
    std::vector<Batch> micro_batches;
    {
      const timeline::Span span("data", timeline::Kind::data);
      for (int64_t k = 0; k < plan.micro_batches_of(i); ++k) micro_batches.push_back(*loader.next());
    }
    const bool epoch_ends = i + 1 == plan.update_steps_per_epoch;
    if (options.on_samples) {
      const auto first = dealt.indices.begin() + micro_batches_done * batch_size;
      const auto last = epoch_ends ? dealt.indices.end() - (dealt.last_is_substitute ? 1 : 0)
                                   : first + plan.micro_batches_of(i) * batch_size;
      options.on_samples(state.global_step + 1, {first, last});
    }
    accumulate(micro_batches, plan.samples_of(i), epoch_ends && dealt.last_is_substitute);
    optimizer_step(run);
    micro_batches_done += plan.micro_batches_of(i);
    ++state.global_step;
    state.epoch = static_cast<double>(epoch) +
                  static_cast<double>(micro_batches_done) / static_cast<double>(plan.micro_batches_per_epoch);
    samples_done += plan.samples_of(i);
    after_step(plan);
  }
}

Run Trainer::Impl::begin_run() {
  const auto plan = plan_training(options.train_dataset.size, group.size(), arguments);
  TrainSampler sampler(options.train_dataset.size,
                       {.strategy = arguments.train_sampling_strategy,
                        .batch_size = arguments.per_device_train_batch_size,
                        .gradient_accumulation_steps = arguments.gradient_accumulation_steps,
                        .seed = arguments.seed},
                       options.train_dataset.lengths);
  const auto adamw = torch::optim::AdamWOptions(arguments.learning_rate)
                         .betas({arguments.adam_beta1, arguments.adam_beta2})
                         .eps(arguments.adam_epsilon)
                         .weight_decay(arguments.weight_decay);
  LRScheduleOptions schedule;
  on_all_ranks(group, [&] { schedule = arguments.lr_schedule(plan.max_steps); });
  state = TrainerState();
  state.max_steps = plan.max_steps;
  state.num_train_epochs = plan.num_train_epochs;
  state.train_batch_size = arguments.per_device_train_batch_size;
  state.logging_steps = arguments.resolved_logging_steps(plan.max_steps);
  state.eval_steps = arguments.resolved_eval_steps(plan.max_steps);
  progress = Progress();
  last_evaluation.clear();
  progress.total_steps = plan.max_steps;
  on_all_ranks(group, [&] { begin_output(); });
  return {.plan = plan,
          .sampler = std::move(sampler),
          .optimizer = FusedAdamW(weight_decay_groups(*model.module, adamw), adamw),
          .schedule = schedule};
}

Trainer::Prediction Trainer::Impl::evaluate(const Dataset& dataset, const std::string& prefix,
                                            bool keep_logits) {
  const auto begin = Clock::now();
  model.module->eval();
  const auto result = evaluate_classifier(dataset, model.eval_forward, arguments, options.num_labels,
                                          options.metrics, group, keep_logits);
  const double runtime = seconds_since(begin);
  seconds_evaluating += runtime;
  if (!result.has_labels) return {result.logits, {}};

  const int64_t batch = arguments.per_device_eval_batch_size * group.size();
  Metrics metrics{{prefix + "_loss", result.loss}};
  std::string shown = fmt::format("loss {:.4f}", result.loss);
  for (size_t m = 0; m < options.metrics.size(); ++m) {
    metrics[prefix + "_" + options.metrics[m]->name()] = result.metrics[m];
    shown += fmt::format("  {} {:.4f}", options.metrics[m]->name(), result.metrics[m]);
  }
  add_speed(metrics, prefix, runtime, static_cast<double>(dataset.size),
            static_cast<double>((dataset.size + batch - 1) / batch));
  log(metrics);
  const std::string when = state.max_steps > 0 ? fmt::format(" after epoch {:.2f}", state.epoch) : "";
  bar.message(fmt::format("{}{}: {}  ({} samples, {:.1f} s)", prefix, when, shown, dataset.size, runtime));
  return {result.logits, metrics};
}

Trainer::Trainer(TrainableModel model, TrainingArguments arguments, ProcessGroup group,
                 TrainerOptions options) {
  arguments.validate();
  if (arguments.eval_strategy != IntervalStrategy::NO && options.eval_dataset.size == 0) {
    throw ValueError("eval_strategy is set but there is no validation set; give one, or set it to no");
  }
  if (options.metrics.empty()) {
    options.metrics = {accuracy(), f1({.average = options.num_labels == 2 ? "binary" : "macro"})};
  }
  Terminal terminal = detect_terminal();
  if (arguments.disable_tqdm) terminal.columns = 0;
  const bool shows = group.rank() == 0;
  impl_.reset(new Impl{.model = std::move(model),
                       .arguments = std::move(arguments),
                       .group = std::move(group),
                       .options = std::move(options),
                       .bar = ProgressBar(shows, terminal)});
}

Trainer::~Trainer() = default;

Metrics Trainer::train() {
  Impl& self = *impl_;
  Run run = self.begin_run();
  self.model.module->train();
  self.start = Clock::now();
  for (int64_t epoch = 0; epoch < run.plan.num_train_epochs; ++epoch) self.run_epoch(run, epoch);
  self.bar.finish();
  self.drain_loss();
  const auto steps = static_cast<double>(self.state.global_step);
  Metrics metrics{{"train_loss", self.total_loss / steps}, {"epoch", self.state.epoch}, {"total_flos", 0}};
  add_speed(metrics, "train", seconds_since(self.start), static_cast<double>(self.samples_done), steps);
  self.log(metrics);
  return metrics;
}

Metrics Trainer::evaluate(const Dataset& dataset, const std::string& prefix) {
  Metrics metrics = impl_->evaluate(dataset, prefix, false).metrics;
  if (!metrics.empty()) metrics["epoch"] = impl_->state.epoch;
  return metrics;
}

Trainer::Prediction Trainer::predict(const Dataset& dataset, const std::string& prefix) {
  return impl_->evaluate(dataset, prefix, true);
}

Metrics Trainer::last_evaluation() const { return impl_->last_evaluation; }

const TrainerState& Trainer::state() const { return impl_->state; }

}  // namespace lockstep
