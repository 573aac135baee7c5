// What a step on logical ranks costs beside DistributedDataParallel with as many micro-batches, in turns in one job.
//
//   logical_ranks_cost MODEL LOGICAL_RANKS BATCH ROUNDS STEPS     rank 0 prints JSON: seconds per step of both, by round
#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/measured_models.h"
#include "bench/places.h"
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/base/memory.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/parallel/logical/logical_ranks.h"

namespace {

using namespace lockstep;
using benchmarks::MiniLM;
using benchmarks::ResNet18;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::string model{};
  int logical_ranks = 0;
  int64_t batch = 0;
  int rounds = 0, steps = 0;
};

constexpr auto kFlags = std::to_array<Flag<Settings>>({
    benchmarks::place<Settings>("MODEL", &Settings::model, "What is trained",
                                FlagCheck::one_of("minilm resnet18")),
    benchmarks::count<Settings>("LOGICAL_RANKS", &Settings::logical_ranks,
                                "Number of logical ranks, over all processes"),
    benchmarks::count<Settings>("BATCH", &Settings::batch, "Samples of a logical rank"),
    benchmarks::count<Settings>("ROUNDS", &Settings::rounds, "Rounds that are measured"),
    benchmarks::count<Settings>("STEPS", &Settings::steps, "Steps of a round"),
});

/// Seconds of the slowest rank.
double timed(const ProcessGroup& world, int steps, const std::function<void(uint64_t)>& step) {
  static uint64_t number = 0;
  world.barrier();
  const auto start = Clock::now();
  for (int s = 0; s < steps; ++s) step(number++);
  const std::chrono::duration<double> mine = Clock::now() - start;
  const at::Tensor slowest = at::tensor({mine.count() / steps}, at::kDouble);
  world.all_reduce(slowest, {.op = ReduceOp::MAX});
  return slowest.item<double>();
}

template <class Kind>
void measure(const Settings& settings) {
  const World world = init();
  at::manual_seed(1);
  auto plain_model = Kind::make(), logical_model = Kind::make();
  DistributedDataParallel plain(plain_model), logical(logical_model);
  LogicalRanks ranks(logical, {.size = settings.logical_ranks});
  FusedAdamW plain_optimizer(plain_model->parameters(), torch::optim::AdamWOptions(1e-5));
  FusedAdamW logical_optimizer(logical_model->parameters(), torch::optim::AdamWOptions(1e-5));
  const auto inputs = Kind::inputs(settings.batch);
  const at::Tensor labels = at::randint(2, {settings.batch}, at::kLong);
  const size_t micro_batches = ranks.own().size();

  const auto plain_step = [&](uint64_t /*step*/) {
    for (size_t m = 0; m < micro_batches; ++m) {
      const bool is_last = m + 1 == micro_batches;
      using NoSync = typename DistributedDataParallel<typename Kind::Module>::NoSync;
      const std::unique_ptr<NoSync> local(is_last ? nullptr : new NoSync(plain.no_sync()));
      at::cross_entropy_loss(plain(inputs), labels).backward();
    }
    clip_grad_norm_(plain_model->parameters(), 1);
    plain_optimizer.step();
    plain_optimizer.zero_grad();
  };
  const auto logical_step = [&](uint64_t step) {
    ranks.run_step(step, 1,
                   [&](const LogicalPass&) { at::cross_entropy_loss(logical(inputs), labels).backward(); });
    clip_grad_norm_(logical_model->parameters(), 1);
    logical_optimizer.step();
    logical_optimizer.zero_grad();
  };
  std::vector<double> of_plain, of_logical;
  for (int round = -2; round < settings.rounds; ++round) {  // the first two warm up
    double seconds[2];
    for (const int side : {round % 2 == 0 ? 0 : 1, round % 2 == 0 ? 1 : 0}) {
      seconds[side] =
          side == 0 ? timed(world, settings.steps, plain_step) : timed(world, settings.steps, logical_step);
    }
    if (round < 0) continue;
    of_plain.push_back(seconds[0]);
    of_logical.push_back(seconds[1]);
  }
  if (world.rank() != 0) return;
  fmt::print("{{\"plain\": [{}], \"logical\": [{}]}}\n", fmt::join(of_plain, ", "),
             fmt::join(of_logical, ", "));
}

int run(int argc, char** argv) {
  const auto settings = parse_table<Settings>(
      "logical_ranks_cost",
      "Prints the seconds of a step on logical ranks and of one with as many micro-batches", kFlags, argc,
      argv);
  if (!settings) return 0;
  if (settings->model == "minilm") {
    measure<MiniLM>(*settings);
  } else {
    measure<ResNet18>(*settings);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  return run_main("logical_ranks_cost", [&] { return run(argc, argv); });
}
