// Running a model over a dataset, each sample exactly once over all ranks.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/dataset.h"
#include "lockstep/metrics/metric.h"
#include "lockstep/trainer/step_engine.h"
#include "lockstep/trainer/trainer_state.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// How many of `size` samples an evaluation takes: limit_eval_batches, fast_dev_run and overfit_batches count
/// batches of per_device_eval_batch_size on every rank.
int64_t evaluation_size(int64_t size, int world_size, const TrainingArguments& arguments);

struct EvaluationOptions {
  int64_t size = 0;  ///< of the dataset, how many samples from its beginning
  std::span<const std::shared_ptr<Metric>> metrics{};
  bool keep_outputs = false;
  /// Of all outputs and labels, on rank 0; what it throws is told once.
  std::function<Metrics(const at::Tensor& outputs, const at::Tensor& labels)> compute_metrics{};
  /// Called after each of this rank's batches.
  std::function<void()> on_batch{};
};

struct EvaluationResult {
  bool has_labels = false;
  double loss = 0;                ///< (the sum of all losses) / (the sum of all counts)
  std::vector<double> metrics{};  ///< the values of those that were given, over all samples
  Metrics computed{};             ///< what compute_metrics gave
  at::Tensor outputs{};           ///< on rank 0, in the dataset's order, where asked for
  at::Tensor labels{};            ///< likewise
};

/// Runs `engine` without gradients over this rank's share of `dataset` (that of its logical ranks, each in batches of its
/// own), samples of similar length together, and adds up over the ranks; loss and metrics are equal on all. They stay empty for a dataset without labels.
/// Only sums travel, unless outputs are kept. Throws ValueError for an empty dataset, and for a metric without
/// the outputs that it needs. Blocks.
EvaluationResult evaluate_model(const Dataset& dataset, detail::StepEngine& engine,
                                const TrainingArguments& arguments, const ProcessGroup& group,
                                const EvaluationOptions& options);

/// Runs `engine` over the first sample of `dataset`, and gives the metrics what came out: what does not fit together
/// is an error before training, not after its first epoch. Does not communicate.
void try_evaluation(const Dataset& dataset, detail::StepEngine& engine, const TrainingArguments& arguments,
                    std::span<const std::shared_ptr<Metric>> metrics);

}  // namespace lockstep
