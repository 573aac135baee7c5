#include "lockstep/trainer/loss.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/nan_to_num.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
Loss cross_entropy_sum(const at::Tensor& logits, const at::Tensor& labels, CrossEntropyOptions options) {
  const bool has_probabilities = labels.is_floating_point();
  const auto wanted = logits.sizes().slice(0, std::max<size_t>(logits.dim(), 1) - 1);
  if (logits.dim() == 0 || (has_probabilities ? logits.sizes() : wanted) != labels.sizes()) {
    throw ValueError(
        fmt::format("cross_entropy_sum got logits of shape {} and labels of shape {}; it takes [..., "
                    "classes] and [...], or [..., classes] of floats",
                    c10::str(logits.sizes()), c10::str(labels.sizes())));
  }
  const bool is_low = logits.scalar_type() == at::kBFloat16 || logits.scalar_type() == at::kHalf;
  const at::Tensor rows = (is_low ? logits.to(at::kFloat) : logits).reshape({-1, logits.size(-1)});
  if (has_probabilities) {
    const at::Tensor flat = labels.reshape({-1, logits.size(-1)}).to(rows.scalar_type());
    return {.sum = at::cross_entropy_loss(rows, flat, {}, at::Reduction::Sum, -100, options.label_smoothing),
            .count = static_cast<double>(rows.size(0)),
            .outputs = logits.detach(),
            .labels = labels};
  }
  const at::Tensor flat = labels.reshape({-1});
  return {.sum = at::cross_entropy_loss(rows, flat, {}, at::Reduction::Sum, options.ignore_index,
                                        options.label_smoothing),
          .count = static_cast<double>((flat != options.ignore_index).sum().item<int64_t>()),
          .outputs = logits.detach(),
          .labels = labels};
}

Loss mse_sum(const at::Tensor& outputs, const at::Tensor& labels) {
  if (outputs.sizes() != labels.sizes()) {
    throw ValueError(
        fmt::format("mse_sum got outputs of shape {} and labels of shape {}; they must be the same",
                    c10::str(outputs.sizes()), c10::str(labels.sizes())));
  }
  return {.sum = at::mse_loss(outputs, labels, at::Reduction::Sum),
          .count = static_cast<double>(labels.numel()),
          .outputs = outputs.detach(),
          .labels = labels};
}

Loss from_mean(const at::Tensor& mean, double count, at::Tensor outputs, at::Tensor labels) {
  // A mean over nothing is not a number, and stays one when it is multiplied by 0.
  return {.sum = count == 0 ? at::nan_to_num(mean, 0.0, 0.0, 0.0) * 0 : mean * count,
          .count = count,
          .outputs = std::move(outputs),
          .labels = std::move(labels)};
}

void check_for_training(const Loss& loss) {
  const auto refuse = [](const char* what) {
    throw ValueError(
        fmt::format("compute_loss gave {}; it must give the sum of the losses as a scalar that was "
                    "computed from the model's parameters, and what the sum is over",
                    what));
  };
  if (!loss.sum.defined()) refuse("no sum");
  if (loss.sum.numel() != 1) refuse("a sum that is no scalar");
  if (!loss.sum.requires_grad()) refuse("a sum without a gradient");
  if (!std::isfinite(loss.count) || loss.count < 0) refuse("a count that is negative or no number");
}

}  // namespace lockstep
