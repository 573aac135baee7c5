// What DistributedDataParallel and step() add to a step of training, in turns in one job, and what their parts take.
//
//   step_cost MODEL ROUNDS STEPS     MODEL: toy, resnet18; rank 0 prints JSON: seconds by round
//
// "alone": the step without a wrapper; "by_hand": with a plain all-reduce of as many bytes at its end; "ddp"; "step": ddp
// in step(). Parts, in a loop of their own: "look": has the program changed the module since it was wrapped? "agreement":
// what a backward does so that all ranks know how it ended. "meeting": the ranks meet once, as step() makes them.
#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
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
#include "lockstep/parallel/ddp/armed_forward.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/parallel/ddp/missing_gradients.h"
#include "lockstep/parallel/ddp/open_passes.h"
#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/parallel/ddp/registered_tensors.h"
#include "lockstep/parallel/ddp/trainable_check.h"
#include "lockstep/step/step.h"

namespace {

using namespace lockstep;
using benchmarks::ResNet18;
using benchmarks::timed;
using benchmarks::Toy;
using Clock = std::chrono::steady_clock;

/// Seconds per call of `part` in a loop, after a tenth as many.
double looped(int calls, const std::function<void()>& part) {
  for (int i = 0; i < calls / 10; ++i) part();
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) part();
  return std::chrono::duration<double>(Clock::now() - start).count() / calls;
}

/// A step of training four ways.
struct Bodies {
  std::function<void()> alone, ddp;
};

/// Seconds, by round.
using Times = std::map<std::string, std::vector<double>>;

void measure_steps(const World& world, const Bodies& bodies, int64_t gradients, int rounds, int steps,
                   Times& times) {
  const at::Tensor flat = world.empty_shared({gradients}, at::kFloat).zero_();
  const std::vector<std::pair<std::string, std::function<void()>>> kinds{
      {"alone", bodies.alone},
      {"by_hand",
       [&] {
         bodies.alone();
         world.all_reduce(flat, {.op = ReduceOp::AVG});
       }},
      {"ddp", bodies.ddp},
      {"step", [&] { lockstep::step(world, bodies.ddp); }}};
  for (const auto& [name, body] : kinds) timed(world, std::max(steps / 10, 2), body);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < kinds.size(); ++i) {  // who comes first changes from round to round
      const auto& [name, body] = kinds[(i + static_cast<size_t>(round)) % kinds.size()];
      times[name].push_back(timed(world, steps, body));
    }
  }
}

/// What the parts take on this rank. Each works on objects of its own, as a DistributedDataParallel has them.
void measure_parts(const World& world, const std::shared_ptr<torch::nn::Module>& module, int rounds,
                   Times& times) {
  constexpr int kCalls = 20000;
  const int blocking_calls = world.backend_name() == "lockstep" ? kCalls : 200;
  lockstep::detail::RegisteredTensors registered(module);
  std::vector<NamedTensor> parameters;
  for (const auto& item : module->named_parameters()) parameters.push_back({item.key(), item.value()});
  const ReducerOptions options{.bucket_caps = {size_t{25} << 20}};
  const auto reducer = Reducer::create(parameters, world.duplicate(), options);
  const GradientBuckets& buckets = reducer->buckets();
  MissingGradients missing(world.duplicate(), /*are_allowed=*/false);
  const ProcessGroup control = world.duplicate();
  const at::Tensor status = at::zeros({3}, at::kLong);
  bool is_changed = false;
  for (int round = 0; round < rounds; ++round) {
    times["look"].push_back(looped(kCalls, [&] {
      is_changed = registered.take_change() || has_changed_trainable(buckets) ||
                   !describe_changed_kinds(buckets).empty() || is_changed;
    }));
    // No gradient has come: as a rank without inputs, this one has no objection all the same.
    const Pass pass{.state = PassState::open, .role = Role::joined, .has_ended = true};
    world.barrier();
    times["agreement"].push_back(looped(blocking_calls, [&] {
      const auto forward = std::make_shared<ArmedForward>(reducer, 0);
      forward->reach();
      OpenPasses::of_process().enter({reducer.get(), 0, 1, forward}, [](const Reducer&) {});
      missing.begin_pass();
      while (OpenPasses::of_process().take_first(1) != nullptr) missing.prepare_agreement(buckets, pass);
      is_changed = (!buckets.buckets().back().agreement.defined() && !missing.agree(buckets)) || is_changed;
    }));
    world.barrier();
    times["meeting"].push_back(
        looped(blocking_calls, [&] { control.all_reduce(status, {.op = ReduceOp::MAX}); }));
  }
  if (is_changed) throw Error("step_cost: the model has changed while it was measured");
}

void print(const World& world, const Times& times) {
  if (world.rank() != 0) return;
  std::string text;
  for (const auto& [name, seconds] : times)
    text += fmt::format("{}\"{}\": [{}]", text.empty() ? "" : ", ", name, fmt::join(seconds, ", "));
  fmt::print("{{{}}}\n", text);
}

/// `make` makes a module, and `loss(call)` its loss by a call of the module or of its wrapper.
template <class Make, class Loss>
void run(const World& world, const Make& make, const Loss& loss, const torch::optim::SGDOptions& options,
         int rounds, int steps) {
  const auto step_of = [&](auto& call, FusedSGD& optimizer) {
    return [&] {
      optimizer.zero_grad();
      loss(call).backward();
      optimizer.step();
    };
  };
  auto plain = make(), wrapped = make();
  DistributedDataParallel ddp(wrapped);
  FusedSGD of_plain(plain->parameters(), options), of_wrapped(wrapped->parameters(), options);
  int64_t gradients = 0;
  for (const at::Tensor& parameter : plain->parameters()) gradients += parameter.numel();
  Times times;
  measure_steps(world, {.alone = step_of(plain, of_plain), .ddp = step_of(ddp, of_wrapped)}, gradients,
                rounds, steps, times);
  measure_parts(world, make().ptr(), rounds, times);
  print(world, times);
}

struct Settings {
  std::string model{};
  int rounds = 0, steps = 0;
};

constexpr auto kFlags = std::to_array<Flag<Settings>>({
    benchmarks::place<Settings>("MODEL", &Settings::model, "What is trained",
                                FlagCheck::one_of("toy resnet18")),
    benchmarks::count<Settings>("ROUNDS", &Settings::rounds, "Rounds that are measured"),
    benchmarks::count<Settings>("STEPS", &Settings::steps, "Steps of a round"),
});

void run(const Settings& settings) {
  const auto& [model, rounds, steps] = settings;
  const World world = init();
  at::manual_seed(1);
  if (model == "toy") {
    const at::Tensor x = at::randn({20, 10}), y = at::randn({20, 5});
    const auto loss = [&](auto& call) { return at::mse_loss(call(x), y); };
    return run(
        world, [] { return Toy(); }, loss, torch::optim::SGDOptions(0.001), rounds, steps);
  }
  const auto inputs = ResNet18::inputs(16);
  const at::Tensor labels = at::randint(2, {16}, at::kLong);
  const auto loss = [&](auto& call) { return at::cross_entropy_loss(call(inputs), labels); };
  run(
      world, [] { return ResNet18::make(); }, loss, torch::optim::SGDOptions(0.001).momentum(0.9), rounds,
      steps);
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  return run_main("step_cost", [&] {
    const auto settings = parse_table<Settings>(
        "step_cost", "Prints what DistributedDataParallel and step() add to a step of training", kFlags, argc,
        argv);
    if (settings) run(*settings);
    return 0;
  });
}
