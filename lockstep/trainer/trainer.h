// The training loop: Hugging Face's Trainer for any module, on one rank or many.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/run_record.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/dataset.h"
#include "lockstep/metrics/metric.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/trainer/callback.h"
#include "lockstep/trainer/loss.h"
#include "lockstep/trainer/opened_run.h"
#include "lockstep/trainer/output/tracking.h"
#include "lockstep/trainer/step_engine.h"
#include "lockstep/trainer/trainer_state.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// What a Trainer is given beside module and arguments. compute_loss or forward is needed.
template <class M>
struct TrainerOptions {
  Dataset train_dataset{};  ///< may be empty when train() is not called
  Dataset eval_dataset{};   ///< may be empty when there is no evaluation in training
  /// The losses of a batch as a sum and a count, and with metrics the outputs and labels (loss.h). Called with
  /// gradients in training and without in evaluation.
  std::function<Loss(TrainedModel<M>&, const Batch&)> compute_loss{};
  /// The model's outputs. Needed by predict() for batches without a tensor "labels" or "label"; and without
  /// compute_loss, whose place then takes cross entropy with label_smoothing_factor.
  std::function<at::Tensor(TrainedModel<M>&, const Batch&)> forward{};
  /// What evaluate() computes beside the loss. The Trainer resets and updates them.
  std::vector<std::shared_ptr<Metric>> metrics{};
  /// More of it, from all outputs and labels in the dataset's order, on rank 0; the other ranks get its result.
  std::function<Metrics(const at::Tensor& outputs, const at::Tensor& labels)> compute_metrics{};
  /// Called on all ranks, in this order (callback.h).
  std::vector<std::shared_ptr<TrainerCallback>> callbacks{};
  /// In place of the one that `optim` names; over this module's parameters. Its learning rates are the
  /// schedule's initial ones.
  std::shared_ptr<torch::optim::Optimizer> optimizer{};
  /// Learning rates and weight decay of parameters by their names; the first rule that fits a name counts.
  std::vector<ParameterRule> parameter_rules{};
  /// What save_model() and checkpoints have beside model.safetensors: texts by file name, such as config.json.
  /// Called on rank 0.
  std::function<std::map<std::string, std::string>()> model_files{};
  /// Called with the optimizer step (from 1) and the sample numbers of this process's micro-batches.
  std::function<void(int64_t step, const std::vector<int64_t>& indices)> on_samples{};
  /// What gives the weights their meaning: tokenizer, labels, the model's configuration, the data, flags of the program. Each
  /// checkpoint has it, and a resume with another one is refused (docs/trainer/resume.md). The Trainer adds the size of the
  /// training set, seeds, sampling and ranks.
  checkpoint::RunRecord record{};
  /// If the program has called open_run(): its result. Otherwise train() calls it.
  std::optional<OpenedRun> opened_run{};
};

namespace detail {

/// TrainerOptions without what the engine takes.
struct TrainerParts {
  std::unique_ptr<StepEngine> engine;
  TrainingArguments arguments;
  ProcessGroup group;
  Dataset train_dataset, eval_dataset;
  std::vector<std::shared_ptr<Metric>> metrics;
  std::function<Metrics(const at::Tensor&, const at::Tensor&)> compute_metrics;
  std::vector<std::shared_ptr<TrainerCallback>> callbacks;
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::vector<ParameterRule> parameter_rules;
  std::function<std::map<std::string, std::string>()> model_files;
  std::function<void(int64_t, const std::vector<int64_t>&)> on_samples;
  checkpoint::RunRecord record;
  std::optional<OpenedRun> opened_run;
};

template <class M>
TrainerParts make_parts(M module, TrainingArguments arguments, ProcessGroup group,
                        TrainerOptions<M> options) {
  arguments.validate();
  detail::check_trainer(arguments, static_cast<bool>(options.compute_loss),
                        static_cast<bool>(options.forward), options.train_dataset, options.eval_dataset);
  options.callbacks = with_tracking(std::move(options.callbacks), arguments);
  if (!options.compute_loss) {
    options.compute_loss = [forward = options.forward, smoothing = arguments.label_smoothing_factor](
                               TrainedModel<M>& model, const Batch& batch) {
      return detail::default_loss(forward(model, batch), batch, smoothing);
    };
  }
  auto engine = std::make_unique<detail::ModuleEngine<M>>(
      std::move(module), std::move(options.compute_loss), std::move(options.forward), group,
      detail::ddp_options(arguments, group, options.train_dataset.size > 0),
      LogicalRanksOptions{.size = arguments.deterministic_world, .seed = arguments.seed});
  return {.engine = std::move(engine),
          .arguments = std::move(arguments),
          .group = std::move(group),
          .train_dataset = std::move(options.train_dataset),
          .eval_dataset = std::move(options.eval_dataset),
          .metrics = std::move(options.metrics),
          .compute_metrics = std::move(options.compute_metrics),
          .callbacks = std::move(options.callbacks),
          .optimizer = std::move(options.optimizer),
          .parameter_rules = std::move(options.parameter_rules),
          .model_files = std::move(options.model_files),
          .on_samples = std::move(options.on_samples),
          .record = std::move(options.record),
          .opened_run = std::move(options.opened_run)};
}

}  // namespace detail

class Trainer;

namespace detail {

class TrainingRun;

/// The program ends with `error`, which did not come out of the Trainer: log and trackers get its exit code.
void note_failure(Trainer& trainer, const std::exception& error);

}  // namespace detail

/// Trains, evaluates and predicts, on all ranks of `group` together: every rank makes the same calls. All
/// methods block; one thread at a time. The gradient of a step is that of (the sum of all losses) / (the sum of
/// all counts), over all ranks and micro-batches, whatever their sizes.
///
///     lockstep::Trainer trainer(net, args, world, {
///         .train_dataset = train, .eval_dataset = test,
///         .compute_loss = [](auto& net, const lockstep::Batch& b) {
///           return lockstep::cross_entropy_sum(net(b["image"]), b["label"]); },
///         .metrics = {lockstep::accuracy()}});
///     trainer.train();
///
/// Before the forward of every micro-batch the default generator of random numbers is seeded with
/// random_key({seed, rank, step, micro-batch}), so that dropout does not depend on what was drawn before. With
/// deterministic_world all that a training computes belongs to logical ranks (logical_ranks.h), and its weights have the
/// same bits on any number of processes (docs/determinism.md).
///
/// Rank 0 shows progress on standard error and writes output_dir/log.jsonl; report_to names trackers that get
/// the same entries (output/tracking.h).
class Trainer {
 public:
  /// `module`: as DistributedDataParallel takes it; shared with the caller. With several ranks and a training
  /// set all must come here together. Throws ValueError when arguments and options cannot work.
  template <class M>
  Trainer(M module, TrainingArguments arguments, ProcessGroup group,
          TrainerOptions<std::type_identity_t<M>> options)
      : Trainer(detail::make_parts(std::move(module), std::move(arguments), std::move(group),
                                   std::move(options))) {}
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Runs all steps; with resume_from_checkpoint those that are left, which then give the bits of an undisturbed
  /// run (docs/trainer/resume.md). Returns train_loss, train_runtime (s), train_samples_per_second and
  /// train_steps_per_second (not if no step was left), epoch, and total_flos, which is 0 (operations are not counted;
  /// Hugging Face's files have the key).
  /// Throws Error naming step and rank when a loss or a gradient is not finite, and ValueError when
  /// output_dir holds another run (output_dir.h) or another job trains in it, and when the run is another one than that of
  /// the checkpoint (docs/trainer/resume.md), each as on_all_ranks does.
  ///
  /// Unless save_strategy is no, SIGTERM, SIGUSR1 and SIGINT end it after the step that runs: when a checkpoint is
  /// saved it throws ReportedError, with which run_main() exits with 75, or 130 after SIGINT; with 74 when it could not be
  /// saved.
  Metrics train();

  /// For the end of a program, when its results are saved: if save_failure is continue and the last checkpoint of train()
  /// could not be saved, rank 0 prints why, and all ranks throw ReportedError, with which run_main() exits with 74. Called
  /// by all ranks; blocks.
  void check_saved() const;

  /// Loss, metrics and speed over each sample of `dataset` exactly once, under "<prefix>_loss" and so on, and
  /// epoch; also logged. Throws ValueError for an empty dataset.
  Metrics evaluate(const Dataset& dataset, const std::string& prefix = "eval");
  /// evaluate() of TrainerOptions::eval_dataset.
  Metrics evaluate();

  /// What predict() returns.
  struct Prediction {
    /// float32 or int64 [size, ...] in the dataset's order, on rank 0; undefined on the others. Where outputs differ
    /// in shape they are filled up with -100 at their ends.
    at::Tensor outputs;
    at::Tensor labels;  ///< likewise; undefined for a dataset without labels
    Metrics metrics{};  ///< as evaluate() returns and logs them; empty for a dataset without labels
  };
  /// Outputs of every sample, and metrics where there are labels.
  Prediction predict(const Dataset& dataset, const std::string& prefix = "test");

  /// Writes `<directory>/model.safetensors` (module_file.h) and TrainerOptions::model_files on rank 0. Throws
  /// FileError; then the files of a model that was there are as before. With ema_decay the averaged weights.
  void save_model(const std::filesystem::path& directory);
  /// Adds an entry to the log: state().log_history and, on rank 0, output_dir/log.jsonl.
  void log(Metrics values);

  /// The metrics of the evaluation that train() made after its last step, as evaluate() returns them; empty
  /// when it made none there.
  Metrics last_evaluation() const;

  /// The step after which the last train() began: that of a checkpoint, or 0.
  int64_t first_step() const;

  /// Steps, epoch and log so far. Valid while the Trainer lives; the calls above change it.
  const TrainerState& state() const;
  /// The arguments of the run. Valid while the Trainer lives.
  const TrainingArguments& args() const;
  /// The last train()'s; before, the one in TrainerOptions, or null.
  torch::optim::Optimizer* optimizer();

 private:
  struct Impl;
  friend class detail::TrainingRun;
  friend void detail::note_failure(Trainer&, const std::exception&);
  explicit Trainer(detail::TrainerParts parts);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
