// Running a model over a dataset, each sample exactly once over all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/dataset.h"
#include "lockstep/metrics/metric.h"
#include "lockstep/optim/ema.h"
#include "lockstep/tracking/progress/live_line.h"
#include "lockstep/trainer/step_engine.h"
#include "lockstep/trainer/trainer_state.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// How many of `size` samples an evaluation takes: limit_eval_batches, fast_dev_run and overfit_batches count
/// batches of per_device_eval_batch_size on every rank.
int64_t evaluation_size(int64_t size, int world_size, const TrainingArguments& arguments);

/// What one evaluation is asked for.
struct EvaluationRequest {
  std::string prefix = "eval";  ///< of the names of what it finds
  bool keep_outputs = false;
  ExponentialMovingAverage* average = nullptr;  ///< the weights that are evaluated; null: the module's own
};

/// What an evaluation has found.
struct Evaluation {
  bool has_labels = false;
  /// "<prefix>_loss" and so on, equal on all ranks, with the speed. Empty for a dataset without labels.
  Metrics metrics{};
  std::string text{};    ///< loss and metrics for the user: "loss 0.4100  accuracy 0.8824"
  int64_t size = 0;      ///< samples, of all ranks
  double runtime = 0;    ///< seconds
  at::Tensor outputs{};  ///< on rank 0, in the dataset's order, if asked for
  at::Tensor labels{};   ///< as outputs; undefined for a dataset without labels
};

/// Evaluates one module. It shows a bar while it runs. All ranks make the same calls; one thread at a time.
class Evaluator {
 public:
  /// What it is made of. References stay the caller's, and outlive it.
  struct Options {
    detail::StepEngine& engine;
    const TrainingArguments& arguments;
    const ProcessGroup& group;
    const std::vector<std::shared_ptr<Metric>>& metrics;
    /// Metrics by name of all outputs and labels, on rank 0; what it throws is told once. May be empty.
    const std::function<Metrics(const at::Tensor& outputs, const at::Tensor& labels)>& compute_metrics;
    bool shows_bar = false;
    Terminal terminal{};  ///< of the bar
  };
  explicit Evaluator(const Options& options) : options_(options) {}

  /// Runs the module without gradients over this rank's share of `dataset` (that of its logical ranks, each in batches
  /// of its own), samples of similar length together, and adds up over the ranks. Only sums travel, unless outputs
  /// are kept. The module stays in evaluation mode. Throws ValueError for an empty dataset, and for a metric without
  /// the outputs that it needs. Blocks.
  Evaluation evaluate(const Dataset& dataset, const EvaluationRequest& request);

  /// Before a training that is to evaluate `dataset`: runs the module over its first sample, and gives the metrics what
  /// came out. What does not fit together is an error then, not after the first epoch. Throws ValueError also for a
  /// metric_for_best_model that evaluate() will not give. Does not communicate.
  void check(const Dataset& dataset);

 private:
  /// What the ranks of this process have found in their shares.
  struct Share;
  /// What all ranks have found.
  struct Found;
  bool gathers(const EvaluationRequest& request) const;
  Loss run(const Batch& batch);
  void add_batch(Loss loss, const std::vector<int64_t>& numbers, bool gathers, Share& share);
  void run_share(const Dataset& dataset, std::vector<int64_t> indices, const std::function<void()>& on_batch,
                 bool gathers, Share& share);
  Found run_all(const Dataset& dataset, int64_t size, const EvaluationRequest& request);
  Metrics compute_on_rank_0(const Found& found);
  void share_buffers();
  void give_names(const Found& found, const std::string& prefix, Evaluation& evaluation);

  Options options_;
};

}  // namespace lockstep
