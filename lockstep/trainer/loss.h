// What a model's mistakes add up to.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep {

/// The losses of a batch as their sum and what the sum is over, so that the gradient of a step is that of (all
/// sums) / (all counts), whatever the number of ranks, of micro-batches and of samples or tokens in each.
struct Loss {
  at::Tensor sum;        ///< a scalar with a gradient
  double count = 0;      ///< samples, or tokens that are not padding; 0 for a batch that has none
  at::Tensor outputs{};  ///< [samples, ...]: what metrics and predictions take; may be undefined without them
  at::Tensor labels{};   ///< what the metrics compare them with
};

/// As torch.nn.functional.cross_entropy's arguments.
struct CrossEntropyOptions {
  int64_t ignore_index = -100;  ///< labels that do not count
  double label_smoothing = 0;   ///< in [0, 1]: the share of every label that is spread over all classes
};

/// Cross entropy of `logits` [..., classes] and int64 `labels` [...], in float32 for lower precisions; the
/// count is that of the labels that are not ignored. Or with floating `labels` [..., classes], the probabilities of the
/// classes, as torch.nn.functional.cross_entropy takes them: nothing is ignored, each row counts. Outputs and labels are the arguments. Throws ValueError
/// for shapes that do not fit together.
Loss cross_entropy_sum(const at::Tensor& logits, const at::Tensor& labels, CrossEntropyOptions options = {});

/// Squared errors of `outputs` and `labels` of the same shape; the count is that of the elements.
Loss mse_sum(const at::Tensor& outputs, const at::Tensor& labels);

/// For a model that returns a mean: the sum is mean * count.
Loss from_mean(const at::Tensor& mean, double count, at::Tensor outputs = {}, at::Tensor labels = {});

/// Throws ValueError for what backward cannot start from: no scalar, no gradient, a count that is none.
void check_for_training(const Loss& loss);

}  // namespace lockstep
