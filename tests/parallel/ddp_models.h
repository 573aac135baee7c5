// Models, inputs and expectations of the DistributedDataParallel cases.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/ops/linear.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "tests/ranks/rank_test.h"

namespace lockstep::testing {

/// Deterministic values, small and all different: [sizes], also computed by the Python side.
inline at::Tensor wave(at::IntArrayRef sizes, double phase) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return (at::arange(count, at::kDouble) * 0.37 + phase).sin().mul_(0.3).to(at::kFloat).view(sizes);
}

inline void fill_with_waves(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (at::Tensor& parameter : module.parameters()) parameter.copy_(wave(parameter.sizes(), phase += 1));
}

struct ToyImpl : torch::nn::Module {
  ToyImpl() {
    net1 = register_module("net1", torch::nn::Linear(10, 10));
    net2 = register_module("net2", torch::nn::Linear(10, 5));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    return net2->forward(ops::linear(x, net1->weight, net1->bias).relu());
  }
  torch::nn::Linear net1{nullptr}, net2{nullptr};
};
TORCH_MODULE(Toy);

inline at::Tensor batch_input(int step, int rank, int rows = 20) {
  return wave({rows, 10}, 100 * step + 10 * rank + 3);
}
inline at::Tensor batch_target(int step, int rank, int rows = 20) {
  return wave({rows, 5}, 100 * step + 10 * rank + 7);
}

struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl() {
    body = register_module("body", torch::nn::Linear(4, 4));
    left = register_module("left", torch::nn::Linear(4, 1));
    right = register_module("right", torch::nn::Linear(4, 1));
    fill_with_waves(*this);
  }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    const at::Tensor h = body->forward(x);
    return {left->forward(h), right->forward(h)};
  }
  torch::nn::Linear body{nullptr}, left{nullptr}, right{nullptr};
};
TORCH_MODULE(TwoHeads);

/// The average over all ranks of what `loss(rank)`, on a module of this process alone, leaves in its
/// gradients (undefined ones count as zeros).
inline std::vector<at::Tensor> average_gradients(const torch::nn::Module& module,
                                                 const std::function<at::Tensor(int)>& loss) {
  std::vector<at::Tensor> sums;
  for (const at::Tensor& parameter : module.parameters()) sums.push_back(at::zeros_like(parameter));
  for (int rank = 0; rank < world().size(); ++rank) {
    for (at::Tensor& parameter : module.parameters()) parameter.mutable_grad().reset();
    loss(rank).backward();
    for (size_t p = 0; p < sums.size(); ++p) {
      const at::Tensor& gradient = module.parameters()[p].grad();
      if (!gradient.defined()) continue;
      sums[p] += gradient.is_sparse() ? gradient.to_dense() : gradient;
    }
  }
  for (at::Tensor& sum : sums) sum /= world().size();
  return sums;
}

inline bool is_close(const at::Tensor& a, const at::Tensor& b, double tolerance = 1e-5) {
  return a.to(at::kDouble).allclose(b.to(at::kDouble), tolerance, tolerance / 10);
}

inline void check_gradients(const torch::nn::Module& module, const std::vector<at::Tensor>& expected,
                            double tolerance = 1e-5) {
  const auto named = module.named_parameters();
  CHECK_TRUE(named.size() == expected.size());
  for (size_t p = 0; p < expected.size(); ++p) {
    const at::Tensor& gradient = named[p].value().grad();
    if (!gradient.defined()) throw std::runtime_error(named[p].key() + " has no gradient");
    const at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
    if (!is_close(dense, expected[p], tolerance)) {
      throw std::runtime_error("the gradient of " + named[p].key() + " is off by " +
                               std::to_string((dense - expected[p]).abs().max().item<double>()));
    }
  }
}

/// Copies: a step of the optimizer rounds most differences of a gradient's last bit away.
inline void keep_gradients(const torch::nn::Module& module, std::vector<at::Tensor>& kept) {
  for (const at::Tensor& parameter : module.parameters()) kept.push_back(parameter.grad().detach().clone());
}

inline constexpr double kTiny = 1e-6;  // a bucket for each parameter

inline at::Tensor toy_loss(auto&& call, int step, int rank) {
  return at::mse_loss(call(batch_input(step, rank)), batch_target(step, rank));
}

inline std::vector<at::Tensor> expected_toy_gradients(int step) {
  Toy alone;
  return average_gradients(*alone, [&](int rank) { return toy_loss(alone, step, rank); });
}

}  // namespace lockstep::testing
