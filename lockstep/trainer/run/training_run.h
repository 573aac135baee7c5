// One training, from its plan to its last checkpoint. For the sources of lockstep/trainer alone.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/data/train_sampler.h"
#include "lockstep/optim/ema.h"
#include "lockstep/trainer/checkpoints/checkpointing.h"
#include "lockstep/trainer/checkpoints/resume.h"
#include "lockstep/trainer/checkpoints/training_files.h"
#include "lockstep/trainer/run/epoch_data.h"
#include "lockstep/trainer/run/replica_guard.h"
#include "lockstep/trainer/run/run_progress.h"
#include "lockstep/trainer/run/run_recovery.h"
#include "lockstep/trainer/run/run_start.h"
#include "lockstep/trainer/run/schedule.h"
#include "lockstep/trainer/run/step_sums.h"
#include "lockstep/trainer/trainer.h"
#include "lockstep/trainer/training_plan.h"

namespace lockstep::detail {

/// What one train() needs, made anew by each. It stays until the next one is made: what is evaluated and saved after the
/// training is its average, and callbacks see its progress. All ranks make the same calls; one thread at a time.
class TrainingRun {
 public:
  /// Plans the training, begins output_dir, and makes optimizer, schedule and average. If it throws, `trainer` still has
  /// the state of the training before. Blocks. `trainer` outlives it.
  TrainingRun(Trainer::Impl& trainer, std::optional<ResumePoint> resumed);
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  /// Trainer::train(). Once.
  Metrics run();

  /// What callbacks see and may change.
  CallbackContext context();
  /// The user's, after the default flow.
  const std::vector<std::shared_ptr<TrainerCallback>>& callbacks() const { return callbacks_; }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  /// Null without one.
  ExponentialMovingAverage* average() { return average_ ? &*average_ : nullptr; }
  int64_t first_step() const { return first_step_; }
  /// Trainer::save_failure().
  const std::string& save_failure() const { return save_failure_; }
  Metrics last_evaluation() const;
  /// Time that an evaluation has taken is no time of training.
  void add_evaluation_time(double seconds) { now_.seconds_evaluating += seconds; }
  /// run() has failed: drops the checkpoint that is being written, before another training writes its own.
  void drop_checkpoint() { checkpoints_.reset(); }

 private:
  TrainingRun(Trainer::Impl& trainer, RunStart start, std::optional<ResumePoint>&& resumed);

  // Before the first step.
  void begin_files();
  bool begin();

  // Epochs and steps.
  void run_part();
  EpochData& data();
  void run_step();
  void end_step(const StepSums& sums);
  bool end_epoch();
  StepSums accumulate(std::vector<RankStep> steps, int64_t step_samples);
  void step_optimizer(const StepSums& sums, int64_t step_samples);

  // What is due behind a step or an epoch.
  bool agree();
  bool log_and_evaluate();
  void evaluate();
  void save_checkpoint();
  CheckpointedTraining checkpointed();
  ReplicaItems replica() const;

  // The end.
  void stop_for(int signal);
  void end_checkpoints();
  void call_train_end();

  Trainer::Impl& trainer_;
  const TrainingArguments& arguments_;
  const ProcessGroup& group_;
  torch::nn::Module& module_;
  TrainerState& state_;  // the Trainer's: callers hold references to it, over many trainings
  const TrainingPlan plan_;
  const checkpoint::RunRecord record_;
  RunProgress now_;
  TrainSampler sampler_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::shared_ptr<TrainerCallback>> callbacks_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_{};
  std::optional<Schedule> schedule_{};
  std::optional<ExponentialMovingAverage> average_{};
  std::optional<ReplicaGuard> guard_{};
  std::optional<Checkpointing> checkpoints_{};
  std::string save_failure_{};
  const int64_t first_step_;
  std::optional<EpochData> data_{};  // of the epoch that runs, behind its steps that have ended
  const bool is_resumed_;
  std::optional<ResumePoint> resumed_;  // until the callbacks have theirs
  std::optional<RunRecovery> recovery_{};
};

}  // namespace lockstep::detail
