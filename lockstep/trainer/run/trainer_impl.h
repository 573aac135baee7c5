// What a Trainer is made of. For the sources of lockstep/trainer alone.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/trainer/evaluator.h"
#include "lockstep/trainer/output/run_log.h"
#include "lockstep/trainer/output/training_bar.h"
#include "lockstep/trainer/run/training_run.h"
#include "lockstep/trainer/trainer.h"

namespace lockstep {

/// What all trainings, evaluations and predictions of one Trainer share.
struct Trainer::Impl {
  Impl(detail::TrainerParts given, bool shows_bars, Terminal terminal)
      : parts(std::move(given)),
        arguments(parts.arguments),
        group(parts.group),
        module(parts.engine->module()),
        bar(shows_bars, terminal),
        run_log(arguments.output_dir, group.rank() == 0 && arguments.fast_dev_run == 0),
        evaluator({.engine = *parts.engine,
                   .arguments = arguments,
                   .group = group,
                   .metrics = parts.metrics,
                   .compute_metrics = parts.compute_metrics,
                   .shows_bar = shows_bars,
                   .terminal = terminal}) {}

  detail::TrainerParts parts;
  const TrainingArguments& arguments;
  const ProcessGroup& group;
  torch::nn::Module& module;
  TrainingBar bar;
  RunLog run_log;
  Evaluator evaluator;
  TrainerState state{};                             // of the newest training
  std::unique_ptr<detail::TrainingRun> training{};  // the newest; null before the first
  std::shared_ptr<const void> lock{};               // of output_dir, from the first training on
  std::vector<double> given_rates{};                // of the user's optimizer, before the first training

  Metrics train();
  /// Locks output_dir and finds where the training goes on; nothing: at its start.
  std::optional<ResumePoint> open();
  enum class Keep : uint8_t {
    metrics,
    outputs
  };  // what evaluate() returns: outputs and labels too, or metrics only
  Prediction evaluate(const Dataset& dataset, const std::string& prefix, Keep what);
  void log(Metrics values);
  void save_model(const std::filesystem::path& directory);
  /// For a training that begins: a new one, or the user's with the learning rates that it came with.
  std::shared_ptr<torch::optim::Optimizer> begin_optimizer();
  ExponentialMovingAverage* average() { return training ? training->average() : nullptr; }
  void call(detail::CallbackEvent event, const Metrics* metrics = nullptr, Metrics* logs = nullptr);

  /// What a call of the Trainer, or the program, has failed with.
  struct Failure {
    int exit_code = 1;
    std::string text{};
  };
  std::optional<Failure> failure{};
  bool is_tracked = false;  // a train() has begun, and nobody was told yet how its run ends
  const int exceptions_before = std::uncaught_exceptions();
  enum class Call : uint8_t {
    train,
    other
  };  // what the program called: an exception out of train() ends the run
  /// Runs `body`. If it throws, notes what the run has failed with.
  template <class Body>
  auto noting_failures(Call which, const Body& body) {
    failure.reset();
    try {
      return body();
    } catch (const std::exception& error) {
      note(error, which);
      throw;
    }
  }
  void note(const std::exception& error, Call which);
  void end(int exit_code, const std::string& error);
};

namespace detail {
/// Runs `body` as one step of all ranks of `group`, or as a part of the one that goes on: what one of them throws ends it on
/// all. That rank gets its own error, the others a StepFailedError. Blocks.
void as_one_step(const ProcessGroup& group, const std::function<void()>& body);
/// Calls `step`, which runs a step: what a rank has thrown in it is what it throws, and the others a StepFailedError.
void as_one_step(const std::function<void()>& step);
}  // namespace detail

/// For Impl::call(): LOCKSTEP_EVENT(on_step_end).
#define LOCKSTEP_EVENT(name) \
  detail::CallbackEvent { &TrainerCallback::name, #name }

}  // namespace lockstep
