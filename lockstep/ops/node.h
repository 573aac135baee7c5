// What the autograd nodes of this folder have in common.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <mutex>
#include <utility>

#include "lockstep/parallel/autograd_node.h"

namespace lockstep::ops {

/// A node that keeps up to two tensors until its backward has run.
struct OperationNode : torch::autograd::Node {
  torch::autograd::SavedVariable input, weight;

  void keep_input(const at::Tensor& tensor) { input = {tensor, /*is_output=*/false}; }
  void keep_weight(const at::Tensor& tensor) { weight = {tensor, /*is_output=*/false}; }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    input.reset_data();
    weight.reset_data();
  }
};

/// Makes `node` the origin of `output`.
template <class NodeHolder, class... Inputs>
void set_origin(const at::Tensor& output, NodeHolder node, const Inputs&... inputs) {
  node->set_next_edges(torch::autograd::collect_next_edges(inputs...));
  torch::autograd::set_history(output, std::move(node));
}

/// What a backward hands along an edge for a gradient whose bucket slot is `slot` (see bucket_slot()), if it
/// has one.
inline at::Tensor handed_out(const at::Tensor& gradient, const at::Tensor& slot) {
  if (!slot.defined()) return gradient;
  if (!gradient.is_same(slot)) slot.copy_(gradient);
  return {};
}

template <class... Inputs>
bool needs_gradient(const Inputs&... inputs) {
  return c10::GradMode::is_enabled() && (inputs.requires_grad() || ...);
}

/// Is a forward-mode derivative on its way through one of them? LibTorch's operations know what to do with
/// it.
inline bool has_tangent(const auto&... tensors) {
  constexpr uint64_t kLevel = 0;  // LibTorch has this one
  return ((tensors.defined() && tensors._fw_grad(kLevel).defined()) || ...);
}

}  // namespace lockstep::ops
