// What it costs that ranks which die can be replaced, in turns in one job under lockrun --max-replacements.
//
//   recovery_cost MODEL ROUNDS STEPS     MODEL: toy, resnet18, resnet18-read; rank 0 prints JSON: seconds of a step by round
//
// "resnet18-read": steps that only read ResNet-18's weights. What a step adds is the same as with a whole step, and is not
// hidden by the noise of one that is a hundred times as long.
//
// "step": step(world, ...); "seeded": step(recovery, ...) of a Recovery that replaces nobody, as without --max-replacements;
// "healable": that of one that does.
#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/measured_models.h"
#include "bench/places.h"
#include "bench/toy_step.h"
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/base/memory.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/recovery/recovery.h"
#include "lockstep/step/step.h"

namespace {

using namespace lockstep;
using benchmarks::ResNet18;
using benchmarks::timed;
using benchmarks::Toy;

enum class Body { train, read_weights };

template <class Model, class Loss>
void run(const World& world, Model model, const Loss& loss, const torch::optim::SGDOptions& options,
         int rounds, int steps, Body kind = Body::train) {
  DistributedDataParallel ddp(model);
  FusedSGD optimizer(model->parameters(), options);
  const auto train = [&] {
    optimizer.zero_grad();
    loss(ddp).backward();
    optimizer.step();
  };
  const auto read = [&] {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : model->parameters()) parameter.sum();
  };
  bool is_warm = false;  // the optimizer has its state
  const auto body = [&] { kind == Body::train || !is_warm ? train() : read(); };
  if (!lockstep::detail::can_replace_ranks())
    throw Error("recovery_cost: start it with lockrun --max-replacements 1");
  // Only the first one of a program replaces ranks.
  Recovery healable(world, {{"model", *model}, {"optimizer", optimizer}});
  Recovery seeded(world, {{"model", *model}, {"optimizer", optimizer}});
  const std::vector<std::pair<std::string, std::function<void()>>> kinds{
      {"step", [&] { lockstep::step(world, body); }},
      {"seeded", [&] { lockstep::step(seeded, body); }},
      {"healable", [&] { lockstep::step(healable, body); }}};
  std::map<std::string, std::vector<double>> times;
  for (const auto& [name, step] : kinds) timed(world, std::max(steps / 10, 2), step);
  is_warm = true;
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < kinds.size(); ++i) {  // who comes first changes from round to round
      const auto& [name, step] = kinds[(i + static_cast<size_t>(round)) % kinds.size()];
      times[name].push_back(timed(world, steps, step));
    }
  }
  if (world.rank() != 0) return;
  std::string text;
  for (const auto& [name, seconds] : times)
    text += fmt::format("{}\"{}\": [{}]", text.empty() ? "" : ", ", name, fmt::join(seconds, ", "));
  fmt::print("{{{}}}\n", text);
}

struct Settings {
  std::string model{};
  int rounds = 0, steps = 0;
};

constexpr auto kFlags = std::to_array<Flag<Settings>>({
    benchmarks::place<Settings>("MODEL", &Settings::model, "What is trained",
                                FlagCheck::one_of("toy resnet18 resnet18-read")),
    benchmarks::count<Settings>("ROUNDS", &Settings::rounds, "Rounds that are measured"),
    benchmarks::count<Settings>("STEPS", &Settings::steps, "Steps of a round"),
});

void run(const Settings& settings) {
  const auto& [model, rounds, steps] = settings;
  const World world = init();
  at::manual_seed(1);
  if (model == "toy") {
    const at::Tensor x = at::randn({20, 10}), y = at::randn({20, 5});
    return run(
        world, Toy(), [&](auto& call) { return at::mse_loss(call(x), y); }, torch::optim::SGDOptions(0.001),
        rounds, steps);
  }
  const auto inputs = ResNet18::inputs(16);
  const at::Tensor labels = at::randint(2, {16}, at::kLong);
  run(
      world, ResNet18::make(), [&](auto& call) { return at::cross_entropy_loss(call(inputs), labels); },
      torch::optim::SGDOptions(0.001).momentum(0.9), rounds, steps,
      model == "resnet18" ? Body::train : Body::read_weights);
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  return run_main("recovery_cost", [&] {
    const auto settings = parse_table<Settings>(
        "recovery_cost", "Prints the seconds of a step with ranks that can be replaced and without", kFlags,
        argc, argv);
    if (settings) run(*settings);
    return 0;
  });
}
