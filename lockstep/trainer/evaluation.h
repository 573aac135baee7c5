// Running a classifier over a dataset, each sample exactly once over all ranks.
#pragma once

#include <functional>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/trainer/dataset.h"
#include "lockstep/trainer/metrics.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep::trainer {

/// How to run the model: batch in, logits [samples, labels] out.
using Forward = std::function<at::Tensor(const Batch&)>;

/// Calls `consume(logits, indices, batch)` for this rank's share of `dataset`, without gradients. Samples of
/// similar length go together; logits are float32.
void for_each_logits(const Dataset& dataset, const Forward& forward, const TrainingArguments& arguments,
                     int world_size, int rank,
                     const std::function<void(const at::Tensor& logits, const std::vector<int64_t>& indices,
                                              const Batch& batch)>& consume);

struct EvaluationResult {
  double loss = 0;  ///< mean cross entropy over all samples
  ConfusionMatrix confusion{1};
};

/// Loss and confusion matrix over all ranks' shares, equal on every rank. Only sums travel. Blocks.
EvaluationResult evaluate_classifier(const Dataset& dataset, const Forward& forward,
                                     const TrainingArguments& arguments, int64_t num_labels,
                                     const ProcessGroup& group);

/// Logits of all samples, float32 [size, labels] in the dataset's order, on every rank. Blocks.
at::Tensor predict_logits(const Dataset& dataset, const Forward& forward, const TrainingArguments& arguments,
                          int64_t num_labels, const ProcessGroup& group);

}  // namespace lockstep::trainer
