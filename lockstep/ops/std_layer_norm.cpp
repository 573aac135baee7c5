#include "lockstep/ops/std_layer_norm.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/sum.h>

#include <array>
#include <cmath>
#include <optional>

#include "lockstep/ops/node.h"
#include "lockstep/parallel/bucket_slot.h"

namespace lockstep::ops {
namespace {

// With b the deviation divided by width and c = sqrt(width / (width - 1)): 1 / (c b + eps) = r / b, where
// r = 1 / (c + eps / b). So LibTorch's normalized rows z only need the factor r. Its own eps keeps 1 / b finite for rows
// of equal values; it is below any variance that counts.
constexpr double kTiny = 1e-30;

at::Tensor factor(const at::Tensor& rstd, int64_t width, double eps) {
  const auto n = static_cast<double>(width);
  return (rstd * eps).add_(std::sqrt(n / (n - 1))).reciprocal_();
}

struct StdLayerNormBackward : torch::autograd::Node {
  torch::autograd::SavedVariable input, alpha;
  at::Tensor normalized, mean, rstd;
  double eps = 0;

  std::string name() const override { return "lockstep::StdLayerNormBackward"; }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    input.reset_data();
    alpha.reset_data();
    normalized.reset();
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    torch::autograd::variable_list results(3);
    if (!gradients[0].defined()) return results;
    TORCH_CHECK(!c10::GradMode::is_enabled(), "std_layer_norm has no second derivative");
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor x = input.unpack(), weight = alpha.unpack();
    TORCH_CHECK(normalized.defined(), "std_layer_norm: a second backward through the same graph");
    const at::Tensor gradient = gradients[0].contiguous();
    const int64_t width = x.size(1);
    const at::Tensor r = factor(rstd, width, eps);
    const at::Tensor of_normalized = gradient * normalized;  // [rows, width]
    if (task_should_compute_output(0)) {
      // r depends on x too: the last term.
      const at::Tensor dot = of_normalized.mv(weight).unsqueeze(1);
      at::Tensor by_z = gradient * weight;
      by_z.mul_(r);
      at::Tensor dx = std::get<0>(at::native_layer_norm_backward(
          by_z, x, {width}, mean, rstd, std::nullopt, std::nullopt, std::array<bool, 3>{true, false, false}));
      const at::Tensor of_r =
          dot.mul_(r).mul_(r).mul_(rstd).mul_(rstd).mul_(eps / static_cast<double>(width));
      results[0] = dx.addcmul_(normalized, of_r);
    }
    if (task_should_compute_output(1)) {
      at::Tensor slot = bucket_slot(next_edge(1), gradient.scalar_type());
      const at::Tensor dalpha = at::mm(r.t(), of_normalized).view({width});
      results[1] = handed_out(dalpha, slot);
    }
    if (task_should_compute_output(2)) {
      at::Tensor slot = bucket_slot(next_edge(2), gradient.scalar_type());
      if (slot.defined()) {
        at::sum_out(slot, gradient, 0);
      } else {
        results[2] = gradient.sum(0);
      }
    }
    return results;
  }
};

// Any device and dtype, by operations that LibTorch differentiates.
at::Tensor composed(const at::Tensor& x, const at::Tensor& alpha, const at::Tensor& bias, double eps) {
  const at::Tensor centered = x - x.mean(-1, true);
  return at::addcmul(bias, centered / (x.std(-1, true, true) + eps), alpha);
}

}  // namespace

at::Tensor std_layer_norm(const at::Tensor& x, const at::Tensor& alpha, const at::Tensor& bias, double eps) {
  const bool plain = x.dim() == 2 && x.is_cpu() && x.layout() == at::kStrided &&
                     (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble) &&
                     alpha.scalar_type() == x.scalar_type() && bias.scalar_type() == x.scalar_type() &&
                     !has_tangent(x, alpha, bias);
  if (!plain) return composed(x, alpha, bias, eps);
  at::Tensor output, normalized, mean, rstd;
  const int64_t width = x.size(1);
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    std::tie(normalized, mean, rstd) =
        at::native_layer_norm(x.contiguous(), {width}, std::nullopt, std::nullopt, kTiny);
    output = (normalized * factor(rstd, width, eps)).mul_(alpha).add_(bias);
  }
  if (needs_gradient(x, alpha, bias)) {
    auto node = c10::make_intrusive<StdLayerNormBackward>();
    node->input = {x.contiguous(), /*is_output=*/false};
    node->alpha = {alpha, /*is_output=*/false};
    node->normalized = normalized;
    node->mean = mean;
    node->rstd = rstd;
    node->eps = eps;
    set_origin(output, std::move(node), x, alpha, bias);
  }
  return output;
}

}  // namespace lockstep::ops
