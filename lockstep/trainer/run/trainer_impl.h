// What a Trainer is made of. For the sources of lockstep/trainer alone.
#pragma once

#include <array>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/loader.h"
#include "lockstep/data/train_sampler.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/lr_scheduler.h"
#include "lockstep/trainer/checkpoints/checkpointing.h"
#include "lockstep/trainer/checkpoints/training_files.h"
#include "lockstep/trainer/output/run_log.h"
#include "lockstep/trainer/output/training_bar.h"
#include "lockstep/trainer/trainer.h"
#include "lockstep/trainer/training_plan.h"

namespace lockstep::detail {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// What one call of train() works with.
struct Run {
  TrainingPlan plan;
  TrainSampler sampler;
  TrainingPosition position;
  std::vector<at::Tensor> parameters;
  std::optional<LRScheduler> scheduler{};
  std::optional<ReduceLROnPlateau> plateau{};
  double learning_rate() const {
    return scheduler ? scheduler->get_last_lr().front() : plateau->get_last_lr().front();
  }
};

/// What a rank trains on in an epoch. A process has one; where there are logical ranks, its share of those.
struct RankData {
  RankEpoch dealt;
  Loader<Batch> loader;
};

/// A rank's part in a step.
struct RankStep {
  std::vector<Batch> micro_batches{};
  bool last_is_substitute = false;
  double loss_sum = 0, count = 0, tokens = 0;  // found by its passes
};

/// What all ranks together have found in a step.
struct StepTotals {
  double loss_sum = 0, count = 0, tokens = 0;
  bool time_is_over = false;
  int stop_signal = 0;
  std::array<double, Checkpointing::kNumbers> checkpoint{};
};

}  // namespace lockstep::detail

namespace lockstep {

struct Trainer::Impl {
  Impl(detail::TrainerParts given, bool shows, Terminal terminal)
      : parts(std::move(given)),
        arguments(parts.arguments),
        group(parts.group),
        module(parts.engine->module()),
        shows_bars(shows),
        bars_terminal(terminal),
        bar(shows, terminal),
        run_log(arguments.output_dir, group.rank() == 0 && arguments.fast_dev_run == 0) {}

  detail::TrainerParts parts;
  const TrainingArguments& arguments;
  const ProcessGroup& group;
  torch::nn::Module& module;
  const bool shows_bars;
  const Terminal bars_terminal;
  TrainingBar bar;
  RunLog run_log;
  std::optional<Checkpointing> checkpoints{};  // of the training that runs
  int64_t last_saved_step = -1;
  struct Best {
    std::optional<double> metric{};
    std::optional<int64_t> step{};
    std::string checkpoint{};
  };
  Best saved_best{};                   // its checkpoint is complete
  std::optional<Best> unsaved_best{};  // its checkpoint is being written
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

  int64_t first_step = 0;  // that this training began after: of a checkpoint, or 0
  double seconds_evaluating = 0;
  detail::Clock::time_point start{};

  void call(detail::CallbackEvent event, const Metrics* metrics = nullptr, Metrics* logs = nullptr);
  Metrics train();
  detail::Run begin_run();
  void check_same_data();
  detail::Run plan_run(const std::optional<ResumePoint>& resumed);
  void begin_state(const detail::Run& run, const std::optional<ResumePoint>& resumed);
  void begin_optimizer();
  void begin_schedule(detail::Run& run);
  void resume(detail::Run& run, const ResumePoint& from);
  CheckpointedTraining checkpointed(detail::Run& run);
  void run_epoch(detail::Run& run, int64_t epoch);
  int data_ranks() const;
  std::vector<detail::RankData> deal(const detail::Run& run);
  detail::StepTotals accumulate(std::vector<detail::RankStep> steps, int64_t step_samples);
  void run_pass(detail::RankStep& step, int64_t micro_batch, int64_t step_samples);
  void optimizer_step(detail::Run& run, const detail::StepTotals& totals, int64_t step_samples);
  void refuse_divergence(double own_loss, double norm);
  void note_progress(const TrainingPlan& plan, int64_t samples, double tokens);
  void log_and_evaluate(detail::Run& run);
  void evaluate_in_training(detail::Run& run);
  void save_checkpoint(detail::Run& run);
  void forget_unsaved_best();
  void end_run(int stop_signal);
  void end_checkpoints();
  void call_train_end();
  void agree();
  void share_buffers();
  Prediction evaluate(const Dataset& dataset, const std::string& prefix, bool keep_outputs);
  void log(Metrics values);
  void save_model(const std::filesystem::path& directory);

  /// What a call of the Trainer, or the program, has failed with.
  struct Failure {
    int exit_code = 1;
    std::string text{};
  };
  std::optional<Failure> failure{};
  bool is_tracked = false;  // a train() has begun, and nobody was told yet how its run ends
  const int exceptions_before = std::uncaught_exceptions();
  /// `body`, and if it throws what the run has failed with. `ends`: the run ends with this exception.
  template <class Body>
  auto noting_failures(bool ends, const Body& body) {
    failure.reset();
    try {
      return body();
    } catch (const std::exception& error) {
      note(error, ends);
      throw;
    }
  }
  void note(const std::exception& error, bool ends);
  void end(int exit_code, const std::string& error);
  void try_before_training();
};

/// For Impl::call(): LOCKSTEP_EVENT(on_step_end).
#define LOCKSTEP_EVENT(name) \
  detail::CallbackEvent { &TrainerCallback::name, #name }

}  // namespace lockstep
