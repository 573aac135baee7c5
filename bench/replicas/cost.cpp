// What comparing the replicas costs: all of them at once, and spread over the steps of a training.
//
//   replica_check_cost BATCH ROUNDS STEPS     rank 0 prints JSON, seconds by round: of a check, of a step of ResNet-18 with SGD and
//                                             momentum, and of what each step adds when the check is spread over STEPS steps
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "bench/measured_models.h"
#include "bench/places.h"
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/base/memory.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/step/check_replicas.h"
#include "lockstep/step/compare_replicas.h"

namespace {

using namespace lockstep;
using benchmarks::ResNet18;
using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The slowest rank's.
double slowest(const ProcessGroup& world, double seconds) {
  const at::Tensor most = at::tensor({seconds}, at::kDouble);
  world.all_reduce(most, {.op = ReduceOp::MAX});
  return most.item<double>();
}

struct Settings {
  int64_t batch = 0;
  int rounds = 0, steps = 0;
};

constexpr auto kFlags = std::to_array<Flag<Settings>>({
    benchmarks::count<Settings>("BATCH", &Settings::batch, "Pictures of a step of this rank"),
    benchmarks::count<Settings>("ROUNDS", &Settings::rounds, "Rounds that are measured"),
    benchmarks::count<Settings>("STEPS", &Settings::steps,
                                "Steps of a round, over which one comparison is spread"),
});

int run(int argc, char** argv) {
  const auto given = parse_table<Settings>(
      "replica_check_cost", "Prints the seconds of comparing the replicas", kFlags, argc, argv);
  if (!given) return 0;
  const auto [batch, rounds, steps] = *given;
  const World world = init();
  auto model = ResNet18::make();
  DistributedDataParallel ddp(model);
  FusedSGD optimizer(lockstep::parameters(model), torch::optim::SGDOptions(0.01).momentum(0.9));
  const auto inputs = ResNet18::inputs(batch);
  const at::Tensor labels = at::randint(10, {batch}, at::kLong);
  const auto train = [&] {
    optimizer.zero_grad();
    at::cross_entropy_loss(ddp(inputs), labels).backward();
    optimizer.step();
  };
  const lockstep::detail::ListItems list = [&] {
    lockstep::detail::ReplicaItems items;
    items.add_module(*model, {}, true);
    items.add_optimizer(optimizer);
    return items;
  };
  lockstep::detail::SpreadComparison comparison(world, list, steps);
  for (int step = 0; step < 3; ++step) train();
  check_replicas(ddp, optimizer);
  std::vector<double> of_check, of_step, of_spread;
  for (int round = 0; round < rounds; ++round) {
    double trained = 0, compared = 0;
    for (int step = 1; step <= steps; ++step) {
      trained += seconds_of(train);
      if (step == steps) world.barrier();  // the last exchanges: not what the ranks wait for each other
      compared += seconds_of([&] { comparison.after_step(round * steps + step); });
    }
    world.barrier();
    of_check.push_back(slowest(world, seconds_of([&] { check_replicas(ddp, optimizer); })));
    of_step.push_back(slowest(world, trained / steps));
    of_spread.push_back(slowest(world, compared / steps));
  }
  if (world.rank() != 0) return 0;
  fmt::print("{{\"check\": [{}], \"step\": [{}], \"spread\": [{}]}}\n", fmt::join(of_check, ", "),
             fmt::join(of_step, ", "), fmt::join(of_spread, ", "));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  return run_main("replica_check_cost", [&] { return run(argc, argv); });
}
