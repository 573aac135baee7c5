// One training, from its plan to its last checkpoint. For the sources of lockstep/trainer alone.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/data/train_sampler.h"
#include "lockstep/optim/ema.h"
#include "lockstep/trainer/checkpoints/best_model.h"
#include "lockstep/trainer/checkpoints/checkpointing.h"
#include "lockstep/trainer/checkpoints/resume.h"
#include "lockstep/trainer/checkpoints/training_files.h"
#include "lockstep/trainer/run/epoch_data.h"
#include "lockstep/trainer/run/replica_guard.h"
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
  void add_evaluation_time(double seconds) { seconds_evaluating_ += seconds; }
  /// run() has failed: drops the checkpoint that is being written, before another training writes its own.
  void drop_checkpoint() { checkpoints_.reset(); }

 private:
  struct DatedMetrics {
    Metrics metrics{};
    int64_t step = -1;
  };
  TrainingRun(Trainer::Impl& trainer, RunStart start, std::optional<ResumePoint>&& resumed);

  // Before the first step.
  void begin_files();
  void begin();
  void resume(const ResumePoint& from);

  // Epochs and steps.
  void run_epoch();
  void run_step(EpochData& data);
  StepSums accumulate(std::vector<RankStep> steps, int64_t step_samples);
  void step_optimizer(const StepSums& sums, int64_t step_samples);
  void note_progress(int64_t samples, double tokens);

  // What is due behind a step or an epoch.
  void agree();
  void log_and_evaluate();
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
  TrainingPosition position_;
  TrainSampler sampler_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::shared_ptr<TrainerCallback>> callbacks_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_{};
  std::optional<Schedule> schedule_{};
  std::optional<ExponentialMovingAverage> average_{};
  std::optional<ReplicaGuard> guard_{};
  std::optional<Checkpointing> checkpoints_{};
  std::string save_failure_{};
  BestModel best_;
  TrainerControl control_{};
  bool is_out_of_time_ = false;  // max_time has passed
  Progress progress_{};
  DatedMetrics last_evaluation_{};
  const int64_t first_step_;
  int64_t last_saved_step_;
  double seconds_evaluating_ = 0;
  double start_ = 0;                    // by monotonic_seconds()
  std::optional<ResumePoint> resumed_;  // until the callbacks have theirs
};

}  // namespace lockstep::detail
