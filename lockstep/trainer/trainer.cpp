#include "lockstep/trainer/trainer.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/main.h"
#include "lockstep/base/record_errors.h"
#include "lockstep/checkpoint/module_file.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/comm/step_members.h"
#include "lockstep/job/launch_environment.h"
#include "lockstep/job/stop_signals.h"
#include "lockstep/optim/group_tensors.h"
#include "lockstep/parallel/activation_checkpoint.h"
#include "lockstep/parallel/sync_module_states.h"
#include "lockstep/recovery/recovery.h"
#include "lockstep/timeline/totals.h"
#include "lockstep/trainer/ema_scope.h"
#include "lockstep/trainer/optimizer_choice.h"
#include "lockstep/trainer/output/model_folder.h"
#include "lockstep/trainer/output/module_summary.h"
#include "lockstep/trainer/output/tracking.h"
#include "lockstep/trainer/output/training_log.h"
#include "lockstep/trainer/run/trainer_impl.h"

namespace lockstep {
namespace {

// An optimizer that the user gives: torch::optim's step a tensor once per listing. Lockstep's list each once.
void tell_repeated_parameters(const torch::optim::Optimizer& optimizer, TrainingBar& bar) {
  size_t listed = 0, different = 0;
  for (const auto& group : optimizer.param_groups()) listed += group.params().size();
  for (const auto& group : detail::tensors_once(optimizer.param_groups())) different += group.size();
  if (listed == different) return;
  bar.message(fmt::format(
      "warning: the optimizer lists {} parameters, of which {} are different tensors, and steps a tensor "
      "once per listing; make it of lockstep::parameters(model)",
      listed, different));
}

}  // namespace

void Trainer::Impl::call(detail::CallbackEvent event, const Metrics* metrics, Metrics* logs) {
  TrainerControl control;  // without a training there is nothing to control
  const Progress progress;
  CallbackContext context = training ? training->context()
                                     : CallbackContext{.args = arguments,
                                                       .state = state,
                                                       .control = control,
                                                       .model = module,
                                                       .optimizer = parts.optimizer.get(),
                                                       .group = group,
                                                       .progress = progress};
  context.metrics = metrics;
  context.logs = logs;
  detail::call_callbacks(training ? training->callbacks() : parts.callbacks, event, context);
}

void Trainer::Impl::log(Metrics values) {
  state.log_history.push_back({.values = std::move(values), .epoch = state.epoch, .step = state.global_step});
  call(LOCKSTEP_EVENT(on_log), nullptr, &state.log_history.back().values);
  run_log.append(state.log_history.back());
}

std::shared_ptr<torch::optim::Optimizer> Trainer::Impl::begin_optimizer() {
  if (!parts.optimizer) return make_optimizer(arguments, module, parts.parameter_rules, group);
  // The schedule of another training begins where that of the first did.
  auto& groups = parts.optimizer->param_groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    if (g == given_rates.size()) given_rates.push_back(groups[g].options().get_lr());
    groups[g].options().set_lr(given_rates[g]);
  }
  tell_repeated_parameters(*parts.optimizer, bar);
  return parts.optimizer;
}

Trainer::Prediction Trainer::Impl::evaluate(const Dataset& dataset, const std::string& prefix, Keep what) {
  const bool keep_outputs = what == Keep::outputs;
  const timeline::Uncounted uncounted;
  Evaluation found;
  {
    const auto averaged = ema_scope(average());
    detail::as_one_step(group, [&] {
      if (auto* const step = detail::StepUnderWay::current()) step->set_place("in an evaluation", "");
      found =
          evaluator.evaluate(dataset, {.prefix = prefix, .keep_outputs = keep_outputs, .average = average()});
    });
  }
  if (training) training->add_evaluation_time(found.runtime);
  if (found.has_labels) {
    log(found.metrics);
    const std::string when = state.max_steps > 0 ? fmt::format(" after epoch {:.2f}", state.epoch) : "";
    bar.message(
        fmt::format("{}{}: {}  ({} samples, {:.1f} s)", prefix, when, found.text, found.size, found.runtime));
  }
  Prediction prediction{.outputs = found.outputs, .labels = found.labels, .metrics = found.metrics};
  if (keep_outputs) {
    call(LOCKSTEP_EVENT(on_predict), &prediction.metrics);
  } else if (found.has_labels) {
    call(LOCKSTEP_EVENT(on_evaluate), &prediction.metrics);
  }
  return prediction;
}

void Trainer::Impl::save_model(const std::filesystem::path& directory) {
  {
    const auto averaged = ema_scope(average());
    on_all_ranks(group, [&] {
      if (group.rank() != 0) return;
      make_directory(directory);
      replace_model(directory, [&](const std::filesystem::path& to) {
        save_module(module, to / "model.safetensors");
        if (!parts.model_files) return;
        for (const auto& [name, text] : parts.model_files()) write_file_atomically(to / name, text);
      });
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
  if (detail::is_replacement()) self.bar.hold();  // its predecessor has said it
  if (self.group.size() > 1 && self.parts.train_dataset.size == 0) {
    sync_module_states(self.module, {.process_group = self.group});
  }
  if (self.arguments.model_summary) self.bar.message(module_summary(self.module));
  self.call(LOCKSTEP_EVENT(on_init_end));
}

Trainer::~Trainer() {
  const auto& failure = impl_->failure;
  const bool unwinds = std::uncaught_exceptions() > impl_->exceptions_before;
  impl_->end(!unwinds ? 0 : failure ? failure->exit_code : 1, failure ? failure->text : "");
}

// What ends a train() ends its run, whatever the program does with it; other errors only if they end the program.
void Trainer::Impl::note(const std::exception& error, Call which) {
  const std::string text = error.what();
  failure = {.exit_code = exit_code(error), .text = text.substr(0, text.find('\n'))};
  if (which == Call::train) end(failure->exit_code, failure->text);
}

// Another rank's end makes lockrun end this one, which still has to say how it ended.
void Trainer::Impl::end(int code, const std::string& error) {
  if (!std::exchange(is_tracked, false)) return;
  const HeldSigterm held;
  if (code != 0) run_log.end({.exit_code = code, .error = error});
  for (const auto& callback : parts.callbacks) {
    if (auto* const knows = dynamic_cast<detail::KnowsTheEnd*>(callback.get())) knows->end(code);
  }
}

void detail::note_failure(Trainer& trainer, const std::exception& error) {
  trainer.impl_->note(error, Trainer::Impl::Call::train);
}

Metrics Trainer::train() {
  return impl_->noting_failures(Impl::Call::train, [&] { return impl_->train(); });
}

Metrics Trainer::Impl::train() {
  end(0, "");  // of an earlier training
  if (arguments.gradient_checkpointing && set_gradient_checkpointing(module) == 0) {
    throw ValueError(
        fmt::format("gradient_checkpointing: no part of the model {} does it; derive the parts that can from "
                    "lockstep::GradientCheckpointing, or leave the argument out",
                    module.name()));
  }
  on_all_ranks(group, [&] {
    if (parts.eval_dataset.size > 0) evaluator.check(parts.eval_dataset);
  });
  std::optional<StopSignals> signals;
  if (arguments.saves()) signals.emplace();
  if (training) training->drop_checkpoint();
  training = std::make_unique<detail::TrainingRun>(*this, open());
  return training->run();
}

// The program's, in the first training, if it has opened the run.
std::optional<ResumePoint> Trainer::Impl::open() {
  OpenedRun run =
      parts.opened_run ? *std::exchange(parts.opened_run, std::nullopt) : open_run(parts.arguments, group);
  lock = run.lock();
  std::optional<ResumePoint> point;
  if (run.checkpoint()) {
    on_all_ranks(group, [&] { point = read_resume_point(*run.checkpoint(), arguments, group.rank() == 0); });
  }
  return point;
}

Metrics Trainer::evaluate(const Dataset& dataset, const std::string& prefix) {
  Metrics metrics = impl_->noting_failures(
      Impl::Call::other, [&] { return impl_->evaluate(dataset, prefix, Impl::Keep::metrics).metrics; });
  if (!metrics.empty()) metrics["epoch"] = impl_->state.epoch;
  return metrics;
}

Metrics Trainer::evaluate() { return evaluate(impl_->parts.eval_dataset); }

Trainer::Prediction Trainer::predict(const Dataset& dataset, const std::string& prefix) {
  return impl_->noting_failures(Impl::Call::other,
                                [&] { return impl_->evaluate(dataset, prefix, Impl::Keep::outputs); });
}

void Trainer::save_model(const std::filesystem::path& directory) {
  impl_->noting_failures(Impl::Call::other, [&] { impl_->save_model(directory); });
}

void Trainer::log(Metrics values) { impl_->log(std::move(values)); }

Metrics Trainer::last_evaluation() const {
  return impl_->training ? impl_->training->last_evaluation() : Metrics();
}

void Trainer::check_saved() const {
  if (!impl_->training || impl_->training->save_failure().empty()) return;
  const FileError error(fmt::format("{}; what the program has saved after the training is complete in {}",
                                    impl_->training->save_failure(), impl_->arguments.output_dir.string()));
  if (impl_->group.rank() == 0) {
    print_error(error);
    record_error(error, 0);
  }
  impl_->group
      .barrier();  // a launcher ends all ranks at the first exit: nobody leaves before the others are here
  throw ReportedError(error.what(), job::kSaveFailedCode);
}

int64_t Trainer::first_step() const { return impl_->training ? impl_->training->first_step() : 0; }

const TrainerState& Trainer::state() const { return impl_->state; }

const TrainingArguments& Trainer::args() const { return impl_->arguments; }

torch::optim::Optimizer* Trainer::optimizer() {
  return impl_->training ? &impl_->training->optimizer() : impl_->parts.optimizer.get();
}

}  // namespace lockstep
