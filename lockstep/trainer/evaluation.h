// Running a classifier over a dataset, each sample exactly once over all ranks.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/metrics/metric.h"
#include "lockstep/trainer/dataset.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// How to run the model: batch in, logits [samples, labels] out.
using Forward = std::function<at::Tensor(const Batch&)>;

struct EvaluationResult {
  bool has_labels = false;
  double loss = 0;                ///< mean cross entropy over all samples
  std::vector<double> metrics{};  ///< the values of those that were given, over all samples
  at::Tensor logits{};            ///< float32 [size, labels] in the dataset's order, where asked for
};

/// Runs `forward` without gradients over this rank's share of `dataset`, samples of similar length together,
/// and adds up over the ranks; the result is equal on all. Loss and metrics stay empty for a dataset without
/// labels. Only sums travel, unless `keep_logits`. Throws ValueError for an empty dataset. Blocks.
EvaluationResult evaluate_classifier(const Dataset& dataset, const Forward& forward,
                                     const TrainingArguments& arguments, int64_t num_labels,
                                     std::span<const std::shared_ptr<Metric>> metrics,
                                     const ProcessGroup& group, bool keep_logits = false);

}  // namespace lockstep
