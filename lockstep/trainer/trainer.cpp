#include "lockstep/trainer/trainer.h"

#include <ATen/Context.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/random_key.h"
#include "lockstep/checkpoint/module_file.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/train_sampler.h"
#include "lockstep/optim/autocast.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/lr_scheduler.h"
#include "lockstep/parallel/sync_module_states.h"
#include "lockstep/timeline/timeline.h"
#include "lockstep/trainer/divergence.h"
#include "lockstep/trainer/evaluation.h"
#include "lockstep/trainer/flow.h"
#include "lockstep/trainer/optimizer_choice.h"
#include "lockstep/trainer/output/module_summary.h"
#include "lockstep/trainer/output/run_log.h"
#include "lockstep/trainer/output/summary.h"
#include "lockstep/trainer/output/training_bar.h"
#include "lockstep/trainer/output/training_log.h"
#include "lockstep/trainer/training_plan.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What one call of train() works with.
struct Run {
  TrainingPlan plan;
  TrainSampler sampler;
  std::vector<at::Tensor> parameters;
  std::optional<LRScheduler> scheduler{};
  std::optional<ReduceLROnPlateau> plateau{};
  double learning_rate() const {
    return scheduler ? scheduler->get_last_lr().front() : plateau->get_last_lr().front();
  }
};

// What all ranks together have found in a step.
struct StepTotals {
  double loss_sum = 0, count = 0;
  bool time_is_over = false;
};

}  // namespace

struct Trainer::Impl {
  Impl(detail::TrainerParts given, bool shows, Terminal terminal)
      : parts(std::move(given)),
        arguments(parts.arguments),
        group(parts.group),
        module(parts.engine->module()),
        bar(shows, terminal),
        run_log(arguments.output_dir, shows && arguments.fast_dev_run == 0) {}

  detail::TrainerParts parts;
  const TrainingArguments& arguments;
  const ProcessGroup& group;
  torch::nn::Module& module;
  TrainingBar bar;
  RunLog run_log;
  TrainerState state{};
  TrainerControl control{};
  Progress progress{};
  Metrics last_evaluation{};
  int64_t last_evaluation_step = -1;
  bool owns_optimizer = false;
  std::vector<double> given_rates{};  // of the user's optimizer, before the first training
  std::optional<ExponentialMovingAverage> ema{};
  std::vector<std::shared_ptr<TrainerCallback>>
      callbacks{};  // the user's, after the default flow while training

  double loss_since_log = 0, total_loss = 0;  // sums of the steps' mean losses
  int64_t last_logged_step = 0;
  double seconds_evaluating = 0;
  Clock::time_point start{};

  void call(detail::CallbackEvent event, const Metrics* metrics = nullptr, Metrics* logs = nullptr);
  Run begin_run();
  void begin_schedule(Run& run);
  void run_epoch(Run& run, int64_t epoch);
  StepTotals accumulate(const std::vector<Batch>& micro_batches, int64_t step_samples,
                        bool last_is_substitute);
  void optimizer_step(Run& run, const StepTotals& totals, int64_t step_samples);
  void refuse_divergence(double own_loss, double norm);
  void note_progress(const TrainingPlan& plan, int64_t samples);
  void log_and_evaluate(Run& run);
  Prediction evaluate(const Dataset& dataset, const std::string& prefix, bool keep_outputs);
  void log(Metrics values);
  void save_model(const std::filesystem::path& directory);
  void try_before_training();
};

#define EVENT(name) \
  detail::CallbackEvent { &TrainerCallback::name, #name }

void Trainer::Impl::call(detail::CallbackEvent event, const Metrics* metrics, Metrics* logs) {
  CallbackContext context{.args = arguments,
                          .state = state,
                          .control = control,
                          .model = module,
                          .optimizer = parts.optimizer.get(),
                          .group = group,
                          .progress = progress,
                          .metrics = metrics,
                          .logs = logs};
  detail::call_callbacks(callbacks, event, context);
}

void Trainer::Impl::log(Metrics values) {
  state.log_history.push_back({.values = std::move(values), .epoch = state.epoch, .step = state.global_step});
  call(EVENT(on_log), nullptr, &state.log_history.back().values);
  run_log.append(state.log_history.back());
}

// Forward and backward of a step's micro-batches. Gradients are left as those of the sum of the losses over
// `step_samples`: where losses are counted by sample, that is already what the optimizer wants.
StepTotals Trainer::Impl::accumulate(const std::vector<Batch>& micro_batches, int64_t step_samples,
                                     bool last_is_substitute) {
  double loss_sum = 0, count = 0;
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    const bool last = i + 1 == micro_batches.size();
    const bool counts = !(last && last_is_substitute);
    const auto guard = last ? nullptr : parts.engine->no_sync();
    at::manual_seed(random_key(
        {arguments.seed, static_cast<uint64_t>(group.rank()), static_cast<uint64_t>(state.global_step), i}));
    Loss loss;
    {
      const AutocastGuard autocast(arguments.bf16);
      loss = parts.engine->compute_loss(micro_batches[i]);
    }
    check_for_training(loss);
    if (counts) {
      loss_sum += loss.sum.item<double>();
      count += loss.count;
    }
    (loss.sum * (counts ? parts.engine->divisor() / static_cast<double>(step_samples) : 0.0)).backward();
    if (!last) call(EVENT(on_substep_end));
  }
  const auto limit = arguments.time_limit();
  const bool time_is_over = limit && Clock::now() - start > *limit;
  const at::Tensor sums = at::tensor({loss_sum, count, time_is_over ? 1.0 : 0.0}, at::kDouble);
  group.all_reduce(sums);
  const auto* total = sums.const_data_ptr<double>();
  if (!std::isfinite(total[0])) refuse_divergence(loss_sum, 0);
  return {.loss_sum = total[0], .count = total[1], .time_is_over = total[2] > 0};
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
  // From a mean over samples to one over what the losses count.
  const double factor = totals.count > 0 ? static_cast<double>(step_samples) / totals.count : 1;
  progress.grad_norm = scale_and_clip_grad_norm_(run.parameters, factor, arguments.max_grad_norm);
  if (!std::isfinite(*progress.grad_norm)) refuse_divergence(0, *progress.grad_norm);
  progress.learning_rate = run.learning_rate();
  call(EVENT(on_pre_optimizer_step));
  parts.optimizer->step();
  call(EVENT(on_optimizer_step));
  if (run.scheduler) run.scheduler->step();
  module.zero_grad();
  if (ema) ema->update();
  const double loss = totals.count > 0 ? totals.loss_sum / totals.count : 0;
  loss_since_log += loss;
  total_loss += loss;
}

void Trainer::Impl::note_progress(const TrainingPlan& plan, int64_t samples) {
  const double seconds = seconds_since(start) - seconds_evaluating;
  progress.step = state.global_step;
  progress.epoch = state.epoch;
  progress.samples_done += samples;
  progress.samples_per_second = static_cast<double>(progress.samples_done) / seconds;
  progress.seconds_left = seconds / static_cast<double>(state.global_step) *
                          static_cast<double>(plan.max_steps - state.global_step);
}

void Trainer::Impl::log_and_evaluate(Run& run) {
  if (!parts.callbacks.empty()) detail::agree_on(control, group);
  if (std::exchange(control.should_log, false) && state.global_step > last_logged_step) {
    progress.loss = loss_since_log / static_cast<double>(state.global_step - last_logged_step);
    loss_since_log = 0;
    last_logged_step = state.global_step;
    log({{"loss", *progress.loss},
         {"grad_norm", *progress.grad_norm},
         {"learning_rate", *progress.learning_rate}});
    bar.log(progress);
  } else {
    bar.update(progress);
  }
  if (std::exchange(control.should_evaluate, false) && parts.eval_dataset.size > 0) {
    last_evaluation = evaluate(parts.eval_dataset, "eval", false).metrics;
    last_evaluation["epoch"] = state.epoch;
    last_evaluation_step = state.global_step;
    module.train();
    if (run.plateau) {
      const auto found = last_evaluation.find(arguments.best_metric());
      if (found == last_evaluation.end()) {
        throw ValueError(fmt::format("metric_for_best_model is {}, which compute_metrics does not give",
                                     arguments.metric_for_best_model));
      }
      run.plateau->step(found->second);
    }
  }
  if (std::exchange(control.should_save, false)) save_model(arguments.output_dir);
}

void Trainer::Impl::run_epoch(Run& run, int64_t epoch) {
  const auto& plan = run.plan;
  run.sampler.set_epoch(epoch);
  control.should_epoch_stop = false;
  call(EVENT(on_epoch_begin));
  const int64_t batch_size = arguments.per_device_train_batch_size;
  auto order = run.sampler.indices();
  if (plan.is_limited) order.resize(static_cast<size_t>(plan.samples_per_epoch));
  const auto dealt =
      deal_epoch(order, group.size(), group.rank(), batch_size, arguments.dataloader_drop_last);
  Loader<Batch> loader(dealt.indices, parts.train_dataset.collate,
                       {.batch_size = batch_size,
                        .num_workers = arguments.dataloader_num_workers,
                        .prefetch_factor = arguments.dataloader_prefetch_factor});
  int64_t micro_batches_done = 0;
  for (int64_t i = 0;
       i < plan.update_steps_per_epoch && !control.should_training_stop && !control.should_epoch_stop; ++i) {
    std::vector<Batch> micro_batches;
    {
      const timeline::Span span("data", timeline::Kind::data);
      for (int64_t k = 0; k < plan.micro_batches_of(i); ++k) micro_batches.push_back(*loader.next());
    }
    const bool epoch_ends = i + 1 == plan.update_steps_per_epoch;
    if (parts.on_samples) {
      const auto first = dealt.indices.begin() + micro_batches_done * batch_size;
      const auto last = epoch_ends ? dealt.indices.end() - (dealt.last_is_substitute ? 1 : 0)
                                   : first + plan.micro_batches_of(i) * batch_size;
      parts.on_samples(state.global_step + 1, {first, last});
    }
    call(EVENT(on_step_begin));
    const auto totals = accumulate(micro_batches, plan.samples_of(i), epoch_ends && dealt.last_is_substitute);
    optimizer_step(run, totals, plan.samples_of(i));
    micro_batches_done += plan.micro_batches_of(i);
    ++state.global_step;
    state.epoch = static_cast<double>(epoch) +
                  static_cast<double>(micro_batches_done) / static_cast<double>(plan.micro_batches_per_epoch);
    note_progress(plan, plan.samples_of(i));
    if (totals.time_is_over) control.should_training_stop = true;
    call(EVENT(on_step_end));
    log_and_evaluate(run);
  }
  call(EVENT(on_epoch_end));
  log_and_evaluate(run);
}

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

Run Trainer::Impl::begin_run() {
  const auto plan = plan_training(parts.train_dataset.size, group.size(), arguments);
  const bool keeps_order = arguments.overfit_batches > 0;
  TrainSampler sampler(
      parts.train_dataset.size,
      {.strategy = keeps_order ? TrainSamplingStrategy::sequential : arguments.train_sampling_strategy,
       .batch_size = arguments.per_device_train_batch_size,
       .gradient_accumulation_steps = arguments.gradient_accumulation_steps,
       .seed = arguments.sampling_seed()},
      parts.train_dataset.lengths);
  state = TrainerState();
  state.max_steps = plan.max_steps;
  state.num_train_epochs = plan.num_train_epochs;
  state.train_batch_size = arguments.per_device_train_batch_size;
  state.logging_steps = arguments.resolved_logging_steps(plan.max_steps);
  state.eval_steps = arguments.resolved_eval_steps(plan.max_steps);
  progress = Progress();
  progress.total_steps = plan.max_steps;
  control = TrainerControl();
  last_evaluation.clear();
  last_evaluation_step = -1;
  loss_since_log = total_loss = seconds_evaluating = 0;
  last_logged_step = 0;
  on_all_ranks(group, [&] {
    if (!arguments.reduces_lr_on_plateau())
      arguments.lr_schedule(plan.max_steps);  // a mistake is told before files are touched
    run_log.begin(arguments);
  });
  Run run{.plan = plan, .sampler = std::move(sampler), .parameters = module.parameters()};
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
  }
  begin_schedule(run);
  if (arguments.ema_decay > 0) ema.emplace(module, arguments.ema_decay);
  callbacks = parts.callbacks;
  callbacks.insert(callbacks.begin(), std::make_shared<DefaultFlow>(plan));
  return run;
}

Trainer::Prediction Trainer::Impl::evaluate(const Dataset& dataset, const std::string& prefix,
                                            bool keep_outputs) {
  const auto begin = Clock::now();
  const int64_t size = evaluation_size(dataset.size, group.size(), arguments);
  module.eval();
  EvaluationResult result;
  {
    std::optional<ExponentialMovingAverage::Use> averaged;
    if (ema) averaged.emplace(*ema);
    result = evaluate_model(dataset, *parts.engine, arguments, group,
                            {.size = size,
                             .metrics = parts.metrics,
                             .keep_outputs = keep_outputs,
                             .compute_metrics = parts.compute_metrics});
  }
  const double runtime = seconds_since(begin);
  seconds_evaluating += runtime;
  Prediction prediction{.outputs = result.outputs, .labels = result.labels, .metrics = {}};
  if (!result.has_labels) {
    if (keep_outputs) call(EVENT(on_predict), &prediction.metrics);
    return prediction;
  }

  const int64_t batch = arguments.per_device_eval_batch_size * group.size();
  auto& metrics = prediction.metrics;
  metrics[prefix + "_loss"] = result.loss;
  std::string shown = fmt::format("loss {:.4f}", result.loss);
  for (size_t m = 0; m < parts.metrics.size(); ++m) {
    metrics[prefix + "_" + parts.metrics[m]->name()] = result.metrics[m];
    shown += fmt::format("  {} {:.4f}", parts.metrics[m]->name(), result.metrics[m]);
  }
  for (const auto& [name, value] : result.computed) {
    metrics[name.starts_with(prefix + "_") ? name : prefix + "_" + name] = value;
    shown += fmt::format("  {} {:.4f}", name, value);
  }
  add_speed(metrics, prefix, runtime, static_cast<double>(size),
            static_cast<double>((size + batch - 1) / batch));
  log(metrics);
  const std::string when = state.max_steps > 0 ? fmt::format(" after epoch {:.2f}", state.epoch) : "";
  bar.message(fmt::format("{}{}: {}  ({} samples, {:.1f} s)", prefix, when, shown, size, runtime));
  if (keep_outputs) {
    call(EVENT(on_predict), &metrics);
  } else {
    call(EVENT(on_evaluate), &metrics);
  }
  return prediction;
}

void Trainer::Impl::save_model(const std::filesystem::path& directory) {
  {
    std::optional<ExponentialMovingAverage::Use> averaged;
    if (ema) averaged.emplace(*ema);
    on_all_ranks(group, [&] {
      if (group.rank() != 0) return;
      make_directory(directory);
      if (parts.save) {
        parts.save(directory);
      } else {
        save_module(module, directory / "model.safetensors");
      }
    });
  }
  call(EVENT(on_save));
}

Trainer::Trainer(detail::TrainerParts parts) {
  Terminal terminal = detect_terminal();
  if (parts.arguments.disable_tqdm) terminal.columns = 0;
  const bool shows = parts.group.rank() == 0;
  impl_.reset(new Impl(std::move(parts), shows, terminal));
  Impl& self = *impl_;
  if (self.group.size() > 1 && self.parts.train_dataset.size == 0) {
    sync_module_states(self.module, {.process_group = self.group});
  }
  if (self.arguments.model_summary) self.bar.message(module_summary(self.module));
  self.callbacks = self.parts.callbacks;
  self.call(EVENT(on_init_end));
}

Trainer::~Trainer() = default;

Metrics Trainer::train() {
  Impl& self = *impl_;
  on_all_ranks(self.group, [&] { self.try_before_training(); });
  Run run = self.begin_run();
  self.module.train();
  self.start = Clock::now();
  self.call(EVENT(on_train_begin));
  if (self.arguments.eval_on_start) {
    self.evaluate(self.parts.eval_dataset, "eval", false);
    self.module.train();
  }
  for (int64_t epoch = 0; epoch < run.plan.num_train_epochs && !self.control.should_training_stop; ++epoch) {
    self.run_epoch(run, epoch);
  }
  self.bar.finish();
  const auto steps = static_cast<double>(self.state.global_step);
  Metrics metrics{{"train_loss", self.total_loss / steps}, {"epoch", self.state.epoch}, {"total_flos", 0}};
  add_speed(metrics, "train", seconds_since(self.start), static_cast<double>(self.progress.samples_done),
            steps);
  self.log(metrics);
  self.call(EVENT(on_train_end));
  self.callbacks = self.parts.callbacks;
  return metrics;
}

Metrics Trainer::evaluate(const Dataset& dataset, const std::string& prefix) {
  Metrics metrics = impl_->evaluate(dataset, prefix, false).metrics;
  if (!metrics.empty()) metrics["epoch"] = impl_->state.epoch;
  return metrics;
}

Metrics Trainer::evaluate() { return evaluate(impl_->parts.eval_dataset); }

Trainer::Prediction Trainer::predict(const Dataset& dataset, const std::string& prefix) {
  return impl_->evaluate(dataset, prefix, true);
}

void Trainer::save_model(const std::filesystem::path& directory) { impl_->save_model(directory); }

void Trainer::log(Metrics values) { impl_->log(std::move(values)); }

Metrics Trainer::last_evaluation() const {
  return impl_->last_evaluation_step == impl_->state.global_step ? impl_->last_evaluation : Metrics();
}

const TrainerState& Trainer::state() const { return impl_->state; }

const TrainingArguments& Trainer::args() const { return impl_->arguments; }

torch::optim::Optimizer* Trainer::optimizer() { return impl_->parts.optimizer.get(); }

#undef EVENT

}  // namespace lockstep
