#include "lockstep/models/linear.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <mutex>
#include <optional>

namespace lockstep::models {
namespace {

struct LinearBackward : torch::autograd::Node {
  // Each is kept only where the other one's gradient is wanted.
  torch::autograd::SavedVariable saved_input, saved_weight;

  std::string name() const override { return "lockstep::LinearBackward"; }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    saved_input.reset_data();
    saved_weight.reset_data();
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    torch::autograd::variable_list results(3);
    const at::Tensor& gradient = gradients[0];
    if (!gradient.defined()) return results;
    // With create_graph these operations are to be differentiated themselves.
    std::optional<at::AutoDispatchBelowADInplaceOrView> below;
    if (!c10::GradMode::is_enabled()) below.emplace();
    if (task_should_compute_output(0)) results[0] = gradient.mm(saved_weight.unpack());
    if (task_should_compute_output(1)) results[1] = gradient.t().mm(saved_input.unpack());
    if (task_should_compute_output(2)) results[2] = gradient.sum(0);
    return results;
  }
};

/// Of real numbers: a complex gradient needs conjugates.
bool is_plain_on_cpu(const at::Tensor& tensor, int64_t dimensions) {
  return tensor.dim() == dimensions && tensor.is_cpu() && tensor.layout() == at::kStrided &&
         tensor.is_floating_point();
}

}  // namespace

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  if (!is_plain_on_cpu(input, 2) || !is_plain_on_cpu(weight, 2) || !is_plain_on_cpu(bias, 1) ||
      bias.size(0) != weight.size(0) || at::autocast::is_autocast_enabled(at::kCPU)) {
    return at::linear(input, weight, bias);
  }
  at::Tensor output;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    output = at::addmm(bias, input, weight.t());
  }
  if (c10::GradMode::is_enabled() &&
      (input.requires_grad() || weight.requires_grad() || bias.requires_grad())) {
    auto node = c10::make_intrusive<LinearBackward>();
    if (weight.requires_grad())
      node->saved_input = torch::autograd::SavedVariable(input, /*is_output=*/false);
    if (input.requires_grad())
      node->saved_weight = torch::autograd::SavedVariable(weight, /*is_output=*/false);
    node->set_next_edges(torch::autograd::collect_next_edges(input, weight, bias));
    torch::autograd::set_history(output, node);
  }
  return output;
}

}  // namespace lockstep::models
