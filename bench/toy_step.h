// PyTorch's toy model, and the time of a step of all ranks.
#pragma once

#include <torch/nn/modules/linear.h>

#include <chrono>
#include <functional>

#include "lockstep/comm/process_group.h"

namespace lockstep::benchmarks {

/// PyTorch's toy model.
struct ToyImpl : torch::nn::Module {
  torch::nn::Linear net1 = register_module("net1", torch::nn::Linear(10, 10));
  torch::nn::Linear net2 = register_module("net2", torch::nn::Linear(10, 5));
  at::Tensor forward(const at::Tensor& x) { return net2(at::relu(net1(x))); }
};
TORCH_MODULE(Toy);

/// Seconds per step of the slowest rank.
inline double timed(const ProcessGroup& world, int steps, const std::function<void()>& step) {
  world.barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int s = 0; s < steps; ++s) step();
  const std::chrono::duration<double> mine = std::chrono::steady_clock::now() - start;
  const at::Tensor slowest = at::tensor({mine.count() / steps}, at::kDouble);
  world.all_reduce(slowest, {.op = ReduceOp::MAX});
  return slowest.item<double>();
}

}  // namespace lockstep::benchmarks
