// DistributedDataParallel run by several ranks under lockrun.
#include <ATen/ops/arange.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <csignal>
#include <cstring>
#include <tuple>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/rank_cases.h"

using namespace lockstep;
using lockstep::testing::check_throws;

namespace {

/// Deterministic values, small and all different: [sizes], also computed by the Python side.
at::Tensor wave(at::IntArrayRef sizes, double phase) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return (at::arange(count, at::kDouble) * 0.37 + phase).sin().mul_(0.3).to(at::kFloat).view(sizes);
}

struct ToyImpl : torch::nn::Module {
  ToyImpl() {
    net1 = register_module("net1", torch::nn::Linear(10, 10));
    net2 = register_module("net2", torch::nn::Linear(10, 5));
    const torch::NoGradGuard no_grad;
    double phase = 0;
    for (at::Tensor& parameter : parameters()) parameter.copy_(wave(parameter.sizes(), phase += 1));
  }
  at::Tensor forward(const at::Tensor& x) { return net2->forward(net1->forward(x).relu()); }
  torch::nn::Linear net1{nullptr}, net2{nullptr};
};
TORCH_MODULE(Toy);

at::Tensor batch_input(int step, int rank, int rows = 20) {
  return wave({rows, 10}, 100 * step + 10 * rank + 3);
}
at::Tensor batch_target(int step, int rank, int rows = 20) {
  return wave({rows, 5}, 100 * step + 10 * rank + 7);
}

void print_parameters(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    const at::Tensor values = item.value().detach().contiguous();
    std::printf("%s", item.key().c_str());
    for (int64_t i = 0; i < values.numel(); ++i)
      std::printf(" %.9g", static_cast<double>(values.data_ptr<float>()[i]));
    std::printf("\n");
  }
}

/// Ten SGD steps; rank 0 prints the parameters for the Python side to compare.
void parity() {
  const World world = init();
  Toy model;
  // What a rank starts with must not matter: rank 0's parameters win.
  if (world.rank() != 0) {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.zero_();
  }
  const auto accumulate = env::get_int("ACCUMULATE").value_or(1);
  DistributedDataParallel ddp(model, {.bucket_cap_mb = 0.0001});
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    for (int micro = 0; micro < accumulate; ++micro) {
      const int index = step * static_cast<int>(accumulate) + micro;
      const auto backward = [&] {
        at::mse_loss(ddp(batch_input(index, world.rank())), batch_target(index, world.rank())).backward();
      };
      if (micro + 1 < accumulate) {
        const auto guard = ddp.no_sync();
        backward();
      } else {
        backward();
      }
    }
    optimizer.step();
  }
  if (world.rank() == 0) print_parameters(*model);
}

std::vector<at::Tensor> train(double bucket_cap_mb, const World& world) {
  Toy model;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = bucket_cap_mb});
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    at::mse_loss(ddp(batch_input(step, world.rank())), batch_target(step, world.rank())).backward();
    optimizer.step();
  }
  return model->parameters();
}

void bucket_size_does_not_change_the_bits() {
  const World world = init();
  const auto expected = train(25, world);
  for (const double cap : {0.0001, 0.0005, 0.001, 1.0, 1e6}) {
    const auto found = train(cap, world);
    for (size_t i = 0; i < expected.size(); ++i) CHECK_TRUE(expected[i].equal(found[i]));
  }
}

void gradients_live_in_the_buckets() {
  const World world = init();
  Toy model;
  DistributedDataParallel ddp(model);
  const auto backward = [&] {
    at::mse_loss(ddp(batch_input(0, world.rank())), batch_target(0, world.rank())).backward();
  };
  backward();
  std::vector<const void*> places;
  for (const auto& parameter : model->parameters()) {
    places.push_back(parameter.grad().const_data_ptr());
    CHECK_TRUE(reinterpret_cast<uintptr_t>(places.back()) % 64 == 0);
  }
  // Dropped by zero_grad(set_to_none), they come home.
  torch::optim::SGD(model->parameters(), 0.1).zero_grad();
  backward();
  for (size_t i = 0; i < places.size(); ++i)
    CHECK_TRUE(model->parameters()[i].grad().const_data_ptr() == places[i]);
  // Accumulated by the user: the sum of both passes' averages.
  const at::Tensor once = model->net1->weight.grad().clone();
  backward();
  CHECK_TRUE(model->net1->weight.grad().allclose(once * 2, 1e-5, 1e-7));
}

void eval_and_no_grad_arm_nothing() {
  const World world = init();
  Toy model;
  DistributedDataParallel ddp(model);
  model->eval();
  if (world.rank() == 0) ddp(batch_input(0, 0)).sum().backward();  // others do not even call it
  model->train();
  {
    const torch::NoGradGuard no_grad;
    if (world.rank() == 0) ddp(batch_input(0, 0));
  }
  model->zero_grad();
  ddp(batch_input(0, world.rank())).sum().backward();
  const auto gathered = world.all_gather(model->net1->weight.grad());
  for (const auto& gradient : gathered) CHECK_TRUE(gradient.equal(gathered[0]));
}

struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl() {
    body = register_module("body", torch::nn::Linear(4, 4));
    left = register_module("left", torch::nn::Linear(4, 1));
    right = register_module("right", torch::nn::Linear(4, 1));
  }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    const at::Tensor h = body->forward(x);
    return {left->forward(h), right->forward(h)};
  }
  torch::nn::Linear body{nullptr}, left{nullptr}, right{nullptr};
};
TORCH_MODULE(TwoHeads);

void a_missing_gradient_is_named() {
  const World world = init();
  TwoHeads model;
  DistributedDataParallel ddp(model);
  const auto [left, right] = ddp(wave({3, 4}, world.rank()));
  const at::Tensor loss = world.rank() == 0 ? left.sum() : (left + right).sum();
  check_throws<Error>([&] { loss.backward(); }, "no gradient for right.weight (rank 0); right.bias (rank 0)");
  // The next step works.
  const auto [l, r] = ddp(wave({3, 4}, world.rank()));
  (l + r).sum().backward();
}

void unused_parameters() {
  const World world = init();
  TwoHeads model;
  DistributedDataParallel ddp(model, {.find_unused_parameters = true});
  const at::Tensor input = wave({3, 4}, world.rank());
  // Used on rank 0 only: everyone receives the average, in which the others contribute zeros.
  {
    const auto [left, right] = ddp(input);
    const at::Tensor loss = world.rank() == 0 ? (left + right).sum() : left.sum();
    loss.backward();
  }
  const auto expected = 3.0 / world.size();
  CHECK_TRUE(std::abs(model->right->bias.grad().item<double>() - expected) < 1e-6);
  // Used nowhere: the old gradient stays as it is.
  const at::Tensor before = model->right->bias.grad().clone();
  model->left->zero_grad();
  model->body->zero_grad();
  {
    const auto [left, right] = ddp(input);
    left.sum().backward();
  }
  CHECK_TRUE(model->right->bias.grad().equal(before));
  // A rank without any gradient at all takes part.
  model->zero_grad();
  {
    auto [left, right] = ddp(input);
    const at::Tensor loss =
        world.rank() == 0 ? (left + right).sum() : at::zeros({1}).requires_grad_().sum() + left.sum() * 0;
    loss.backward();
  }
  CHECK_TRUE(model->right->bias.grad().defined());
}

void different_modules_are_refused() {
  const World world = init();
  torch::nn::Linear model(4, world.rank() == 0 ? 3 : 2);
  check_throws<Error>(
      [&] { DistributedDataParallel ddp(model); },
      "rank 0 has parameter weight [3, 4] Float requires_grad, rank 1 has parameter weight [2, 4]");
}

void buffers_follow_rank_0() {
  const World world = init();
  torch::nn::BatchNorm1d model(3);
  DistributedDataParallel ddp(model);
  for (int step = 0; step < 3; ++step) ddp(wave({8, 3}, world.rank() + step)).sum().backward();
  ddp(wave({8, 3}, world.rank()));
  // Rank r's statistics differ by its own last batch only; the broadcast before it made them equal.
  const torch::NoGradGuard no_grad;
  model->eval();
  const auto gathered = world.all_gather(model->running_mean);
  const at::Tensor start = (gathered[0] - 0.1 * wave({8, 3}, 0).mean(0)) / 0.9;
  for (int r = 0; r < world.size(); ++r) {
    CHECK_TRUE(
        gathered[static_cast<size_t>(r)].allclose(start * 0.9 + 0.1 * wave({8, 3}, r).mean(0), 1e-4, 1e-6));
  }
}

void one_rank_dies_in_training() {
  const World world = init();
  Toy model;
  DistributedDataParallel ddp(model);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < 1000000; ++step) {
    if (step == 50 && world.rank() == 1) ::raise(SIGKILL);
    optimizer.zero_grad();
    at::mse_loss(ddp(batch_input(step % 10, world.rank())), batch_target(step % 10, world.rank())).backward();
    optimizer.step();
  }
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::testing::run_case(
      argc, argv,
      {{"parity", parity},
       {"bucket_size_does_not_change_the_bits", bucket_size_does_not_change_the_bits},
       {"gradients_live_in_the_buckets", gradients_live_in_the_buckets},
       {"eval_and_no_grad_arm_nothing", eval_and_no_grad_arm_nothing},
       {"a_missing_gradient_is_named", a_missing_gradient_is_named},
       {"unused_parameters", unused_parameters},
       {"different_modules_are_refused", different_modules_are_refused},
       {"buffers_follow_rank_0", buffers_follow_rank_0},
       {"one_rank_dies_in_training", one_rank_dies_in_training}});
}
