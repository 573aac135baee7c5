#include "lockstep/trainer/trainer.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/base/file.h"
#include "lockstep/base/main.h"
#include "lockstep/checkpoint/module_file.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/job/launch_environment.h"
#include "lockstep/job/stop_signals.h"
#include "lockstep/parallel/sync_module_states.h"
#include "lockstep/timeline/totals.h"
#include "lockstep/tracking/progress/progress_bar.h"
#include "lockstep/trainer/evaluation.h"
#include "lockstep/trainer/output/module_summary.h"
#include "lockstep/trainer/output/summary.h"
#include "lockstep/trainer/output/tracking.h"
#include "lockstep/trainer/output/training_log.h"
#include "lockstep/trainer/run/trainer_impl.h"

namespace lockstep {
using namespace detail;

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

// Behind what may have set flags on one rank, and before all act on them.
void Trainer::Impl::agree() {
  if (!parts.callbacks.empty()) detail::agree_on(control, group);
}

// The callbacks find the model that is saved and evaluated.
void Trainer::Impl::call_train_end() {
  std::optional<ExponentialMovingAverage::Use> averaged;
  if (ema) averaged.emplace(*ema);
  call(LOCKSTEP_EVENT(on_train_end));
}

void Trainer::Impl::log(Metrics values) {
  state.log_history.push_back({.values = std::move(values), .epoch = state.epoch, .step = state.global_step});
  call(LOCKSTEP_EVENT(on_log), nullptr, &state.log_history.back().values);
  run_log.append(state.log_history.back());
}

// A forward pass leaves each rank the statistics of its own batch. What is evaluated is what is saved, rank 0's model; in
// training the next forward would copy its buffers too.
void Trainer::Impl::share_buffers() {
  if (group.size() == 1 || !arguments.ddp_broadcast_buffers || parts.engine->logical_ranks() != nullptr)
    return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& buffer : module.buffers()) {
    if (!buffer.defined() || buffer.numel() == 0) continue;
    const at::Tensor values = buffer.detach().contiguous();
    group.broadcast(values, {.src = 0});
    if (!values.is_alias_of(buffer)) buffer.copy_(values);
  }
}

Trainer::Prediction Trainer::Impl::evaluate(const Dataset& dataset, const std::string& prefix,
                                            bool keep_outputs) {
  const timeline::Uncounted uncounted;
  const auto begin = Clock::now();
  const int64_t size = evaluation_size(dataset.size, data_ranks(), arguments);
  module.eval();
  EvaluationResult result;
  {
    std::optional<ExponentialMovingAverage::Use> averaged;
    if (ema && !ema->is_swapped()) averaged.emplace(*ema);
    share_buffers();
    const int64_t rank_batch = arguments.per_device_eval_batch_size;
    const int ranks = data_ranks();
    const int64_t of_a_rank = ((size + ranks - 1) / ranks + rank_batch - 1) / rank_batch;
    ProgressBar eval_bar({.total = of_a_rank * (ranks / group.size()),
                          .label = prefix,
                          .unit = "batches",
                          .enabled = shows_bars,
                          .leave = false,
                          .terminal = bars_terminal});
    result = evaluate_model(dataset, *parts.engine, arguments, group,
                            {.size = size,
                             .metrics = parts.metrics,
                             .keep_outputs = keep_outputs,
                             .compute_metrics = parts.compute_metrics,
                             .on_batch = [&] { eval_bar.advance(); }});
  }
  const double runtime = seconds_since(begin);
  seconds_evaluating += runtime;
  Prediction prediction{.outputs = result.outputs, .labels = result.labels, .metrics = {}};
  if (!result.has_labels) {
    if (keep_outputs) call(LOCKSTEP_EVENT(on_predict), &prediction.metrics);
    return prediction;
  }

  const int64_t batch = arguments.per_device_eval_batch_size * data_ranks();
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
    call(LOCKSTEP_EVENT(on_predict), &metrics);
  } else {
    call(LOCKSTEP_EVENT(on_evaluate), &metrics);
  }
  return prediction;
}

void Trainer::Impl::save_model(const std::filesystem::path& directory) {
  {
    std::optional<ExponentialMovingAverage::Use> averaged;
    if (ema && !ema->is_swapped()) averaged.emplace(*ema);
    on_all_ranks(group, [&] {
      if (group.rank() != 0) return;
      make_directory(directory);
      save_module(module, directory / "model.safetensors");
      if (!parts.model_files) return;
      for (const auto& [name, text] : parts.model_files()) write_file_atomically(directory / name, text);
    });
  }
  call(LOCKSTEP_EVENT(on_save));
}

Trainer::Trainer(detail::TrainerParts parts) {
  Terminal terminal = detect_terminal();
  if (parts.arguments.disable_tqdm) terminal.columns = 0;
  const bool shows = parts.group.rank() == 0 ||
                     (parts.arguments.log_on_each_node && job::LaunchEnvironment::from_env().local_rank == 0);
  impl_.reset(new Impl(std::move(parts), shows, terminal));
  Impl& self = *impl_;
  if (self.group.size() > 1 && self.parts.train_dataset.size == 0) {
    sync_module_states(self.module, {.process_group = self.group});
  }
  if (self.arguments.model_summary) self.bar.message(module_summary(self.module));
  self.callbacks = self.parts.callbacks;
  self.call(LOCKSTEP_EVENT(on_init_end));
}

Trainer::~Trainer() {
  const auto& failure = impl_->failure;
  const bool unwinds = std::uncaught_exceptions() > impl_->exceptions_before;
  impl_->end(!unwinds ? 0 : failure ? failure->exit_code : 1, failure ? failure->text : "");
}

// What ends a train() ends its run, whatever the program does with it; other errors only if they end the program.
void Trainer::Impl::note(const std::exception& error, bool ends) {
  const std::string text = error.what();
  failure = {.exit_code = exit_code(error), .text = text.substr(0, text.find('\n'))};
  if (ends) end(failure->exit_code, failure->text);
}

// Another rank's end makes lockrun end this one, which still has to say how it ended.
void Trainer::Impl::end(int code, const std::string& error) {
  if (!std::exchange(is_tracked, false)) return;
  const HeldSigterm held;
  if (code != 0) run_log.end(code, error);
  for (const auto& callback : parts.callbacks) {
    if (auto* const knows = dynamic_cast<detail::KnowsTheEnd*>(callback.get())) knows->end(code);
  }
}

void detail::note_failure(Trainer& trainer, const std::exception& error) { trainer.impl_->note(error, true); }

Metrics Trainer::train() {
  return impl_->noting_failures(true, [&] { return impl_->train(); });
}

Metrics Trainer::Impl::train() {
  end(0, "");  // of an earlier training
  on_all_ranks(group, [&] { try_before_training(); });
  std::optional<StopSignals> signals;
  if (arguments.saves()) signals.emplace();
  Run run = begin_run();
  if (arguments.eval_on_start && first_step == 0) {
    evaluate(parts.eval_dataset, "eval", false);
    agree();
    module.train();
  }
  while (run.position.epoch < run.plan.num_train_epochs && !control.should_training_stop) {
    run_epoch(run, run.position.epoch);
  }
  bar.finish();
  end_checkpoints();
  const auto steps =
      static_cast<double>(std::max<int64_t>(state.global_step, 1));  // stopped before the first
  Metrics metrics{{"train_loss", run.position.total_loss / steps}, {"epoch", state.epoch}, {"total_flos", 0}};
  add_speed(metrics, "train", seconds_since(start), static_cast<double>(progress.samples_done),
            static_cast<double>(state.global_step - first_step));
  log(metrics);
  call_train_end();
  callbacks = parts.callbacks;
  return metrics;
}

Metrics Trainer::evaluate(const Dataset& dataset, const std::string& prefix) {
  Metrics metrics =
      impl_->noting_failures(false, [&] { return impl_->evaluate(dataset, prefix, false).metrics; });
  if (!metrics.empty()) metrics["epoch"] = impl_->state.epoch;
  return metrics;
}

Metrics Trainer::evaluate() { return evaluate(impl_->parts.eval_dataset); }

Trainer::Prediction Trainer::predict(const Dataset& dataset, const std::string& prefix) {
  return impl_->noting_failures(false, [&] { return impl_->evaluate(dataset, prefix, true); });
}

void Trainer::save_model(const std::filesystem::path& directory) {
  impl_->noting_failures(false, [&] { impl_->save_model(directory); });
}

void Trainer::log(Metrics values) { impl_->log(std::move(values)); }

Metrics Trainer::last_evaluation() const {
  return impl_->last_evaluation_step == impl_->state.global_step ? impl_->last_evaluation : Metrics();
}

int64_t Trainer::first_step() const { return impl_->first_step; }

const TrainerState& Trainer::state() const { return impl_->state; }

const TrainingArguments& Trainer::args() const { return impl_->arguments; }

torch::optim::Optimizer* Trainer::optimizer() { return impl_->parts.optimizer.get(); }

}  // namespace lockstep
