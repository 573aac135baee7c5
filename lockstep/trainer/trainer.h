// The training loop: Hugging Face's Trainer over DistributedDataParallel.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/metrics/metric.h"
#include "lockstep/trainer/dataset.h"
#include "lockstep/trainer/trainer_state.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// A classifier as the Trainer uses it: batches in, logits [samples, labels] out.
struct TrainableModel {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const Batch&)> train_forward;  ///< averages gradients in backward
  std::function<at::Tensor(const Batch&)> eval_forward;   ///< of this rank alone
  /// Guard under which forward and backward leave gradients unaveraged.
  std::function<std::shared_ptr<void>()> no_sync;
};

/// Binds a DistributedDataParallel, which must outlive the result, and `call(module, batch)`, which runs one
/// forward.
template <class Ddp, class Call>
TrainableModel trainable(Ddp& ddp, Call call) {
  return {.module = ddp.module().ptr(),
          .train_forward = [&ddp, call](const Batch& batch) { return call(ddp, batch); },
          .eval_forward = [&ddp, call](const Batch& batch) { return call(ddp.module(), batch); },
          .no_sync = [&ddp]() -> std::shared_ptr<void> {
            return std::shared_ptr<void>(new auto(ddp.no_sync()));
          }};
}

struct TrainerOptions {
  Dataset train_dataset{};  ///< may be empty when train() is not called
  Dataset eval_dataset{};   ///< may be empty when eval_strategy is NO
  int64_t num_labels = 2;
  /// What evaluate() computes beside the loss. Default: accuracy, and F1: of label 1 where there are two labels,
  /// else the mean over the labels (macro). The Trainer resets and updates them.
  std::vector<std::shared_ptr<Metric>> metrics{};
  /// Called with the optimizer step (from 1) and this rank's sample numbers of each of its micro-batches.
  std::function<void(int64_t step, const std::vector<int64_t>& indices)> on_samples{};
};

/// Trains, evaluates and predicts, on all ranks of `group` together: every rank makes the same calls. All
/// methods block. The gradient of a step is that of the mean loss over all samples of the global batch,
/// whatever the number of ranks, of micro-batches and of samples in the last batch.
///
/// Rank 0 shows progress on standard error and writes output_dir/log.jsonl.
class Trainer {
 public:
  /// Throws ValueError when the arguments cannot work (TrainingArguments::validate).
  Trainer(TrainableModel model, TrainingArguments arguments, ProcessGroup group, TrainerOptions options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Runs all steps. Returns train_loss, train_runtime (s), train_samples_per_second, train_steps_per_second,
  /// epoch, and total_flos, which is 0 (operations are not counted; Hugging Face's files have the key).
  /// Throws Error naming step and rank when a loss or a gradient is not finite, and ValueError when
  /// output_dir holds another run (output_dir.h), each as on_all_ranks does.
  Metrics train();

  /// Loss, metrics and speed over each sample of `dataset` exactly once, under
  /// "<prefix>_loss" and so on, and epoch; also logged.
  Metrics evaluate(const Dataset& dataset, const std::string& prefix = "eval");

  struct Prediction {
    at::Tensor logits;  ///< float32 [size, labels] in the dataset's order
    Metrics metrics;    ///< as evaluate() returns and logs them; empty for a dataset without labels
  };
  /// Logits of every sample, on every rank, and metrics where there are labels.
  Prediction predict(const Dataset& dataset, const std::string& prefix = "test");

  /// The metrics of the evaluation that train() made after its last step, as evaluate() returns them; empty
  /// when it made none there.
  Metrics last_evaluation() const;

  const TrainerState& state() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
