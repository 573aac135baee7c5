// What step() adds to a step of training, in turns in one job.
//
//   step_cost MODEL ROUNDS STEPS     MODEL: toy, resnet18; rank 0 prints JSON: seconds per step of both, by round
#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "bench/measured_models.h"
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/base/memory.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/step/step.h"

namespace {

using namespace lockstep;
using benchmarks::ResNet18;
using Clock = std::chrono::steady_clock;

/// PyTorch's toy model.
struct ToyImpl : torch::nn::Module {
  torch::nn::Linear net1 = register_module("net1", torch::nn::Linear(10, 10));
  torch::nn::Linear net2 = register_module("net2", torch::nn::Linear(10, 5));
  at::Tensor forward(const at::Tensor& x) { return net2(at::relu(net1(x))); }
};
TORCH_MODULE(Toy);

/// Seconds per step of the slowest rank.
double timed(const ProcessGroup& world, int steps, const std::function<void()>& step) {
  world.barrier();
  const auto start = Clock::now();
  for (int s = 0; s < steps; ++s) step();
  const std::chrono::duration<double> mine = Clock::now() - start;
  const at::Tensor slowest = at::tensor({mine.count() / steps}, at::kDouble);
  world.all_reduce(slowest, {.op = ReduceOp::MAX});
  return slowest.item<double>();
}

void measure(const World& world, const std::function<void()>& body, int rounds, int steps) {
  std::vector<double> plain, as_step;
  const auto with_step = [&] { lockstep::step(world, body); };
  timed(world, std::max(steps / 10, 2), with_step);
  for (int round = 0; round < rounds; ++round) {
    // Who comes first changes from round to round.
    for (const bool is_step : {round % 2 == 0, round % 2 != 0}) {
      (is_step ? as_step : plain)
          .push_back(is_step ? timed(world, steps, with_step) : timed(world, steps, body));
    }
  }
  if (world.rank() != 0) return;
  fmt::print("{{\"plain\": [{}], \"step\": [{}]}}\n", fmt::join(plain, ", "), fmt::join(as_step, ", "));
}

void run(const std::string& model, int rounds, int steps) {
  const World world = init();
  at::manual_seed(1);
  if (model == "toy") {
    Toy toy;
    DistributedDataParallel ddp(toy);
    FusedSGD optimizer(toy->parameters(), torch::optim::SGDOptions(0.001));
    const at::Tensor x = at::randn({20, 10}), y = at::randn({20, 5});
    measure(
        world,
        [&] {
          optimizer.zero_grad();
          at::mse_loss(ddp(x), y).backward();
          optimizer.step();
        },
        rounds, steps);
    return;
  }
  if (model != "resnet18")
    throw ValueError("step_cost: the model " + model + " is unknown; there are toy and resnet18");
  auto resnet = ResNet18::make();
  DistributedDataParallel ddp(resnet);
  FusedSGD optimizer(resnet->parameters(), torch::optim::SGDOptions(0.001).momentum(0.9));
  const auto inputs = ResNet18::inputs(16);
  const at::Tensor labels = at::randint(2, {16}, at::kLong);
  measure(
      world,
      [&] {
        optimizer.zero_grad();
        at::cross_entropy_loss(ddp(inputs), labels).backward();
        optimizer.step();
      },
      rounds, steps);
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  return run_main("step_cost", [&] {
    if (argc != 4) throw ValueError("usage: step_cost MODEL ROUNDS STEPS");
    run(argv[1], std::stoi(argv[2]), std::stoi(argv[3]));
    return 0;
  });
}
