#include "lockstep/ops/linear.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include <optional>

#include "lockstep/ops/node.h"
#include "lockstep/parallel/bucket_slot.h"

namespace lockstep::ops {
namespace {

struct LinearBackward : OperationNode {  // keeps each only where the other one's gradient is wanted
  std::string name() const override { return "lockstep::LinearBackward"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    torch::autograd::variable_list results(3);
    const at::Tensor& gradient = gradients[0];
    if (!gradient.defined()) return results;
    // With create_graph these operations are to be differentiated themselves.
    std::optional<at::AutoDispatchBelowADInplaceOrView> below;
    if (!c10::GradMode::is_enabled()) below.emplace();
    if (task_should_compute_output(0)) {
      const at::Tensor w = weight.unpack();
      // MixedPrecision may have given the parameter its own dtype back since the forward.
      const bool fits = w.scalar_type() == gradient.scalar_type();
      results[0] = gradient.mm(fits ? w : w.to(gradient.scalar_type()));
    }
    if (task_should_compute_output(1)) {
      const at::Tensor transposed = gradient.t(), x = input.unpack();
      at::Tensor slot = bucket_slot(next_edge(1), gradient.scalar_type());
      if (slot.defined()) {
        at::mm_out(slot, transposed, x);
      } else {
        results[1] = transposed.mm(x);
      }
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

/// True for real numbers only: a complex gradient needs conjugates.
bool is_plain_matrix(const at::Tensor& tensor, int64_t dimensions) {
  return tensor.dim() == dimensions && tensor.is_cpu() && tensor.layout() == at::kStrided &&
         tensor.is_floating_point();
}

}  // namespace

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const bool bias_fits = !bias.defined() || (is_plain_matrix(bias, 1) && bias.size(0) == weight.size(0));
  if (!is_plain_matrix(input, 2) || !is_plain_matrix(weight, 2) || !bias_fits ||
      has_tangent(input, weight, bias) || at::autocast::is_autocast_enabled(at::kCPU)) {
    return at::linear(input, weight, bias.defined() ? std::optional(bias) : std::nullopt);
  }
  at::Tensor output;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    output = bias.defined() ? at::addmm(bias, input, weight.t()) : at::mm(input, weight.t());
  }
  if (needs_gradient(input, weight) || (bias.defined() && needs_gradient(bias))) {
    auto node = make_node<LinearBackward>();
    if (weight.requires_grad()) node->keep_input(input);
    if (input.requires_grad()) node->keep_weight(weight);
    set_origin(output, std::move(node), input, weight, bias);
  }
  return output;
}

}  // namespace lockstep::ops
