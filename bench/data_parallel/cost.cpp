// Trains a model on random inputs in one of the ways that bench/data_parallel/run compares.
//
//   data_parallel_cost MODEL single|dp|ddp REPLICAS BATCH STEPS     rank 0 prints JSON: samples per second, bytes of the job (PSS)
#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "bench/measured_models.h"
#include "bench/places.h"
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/base/memory.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/parallel/data_parallel/data_parallel.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"

namespace {

using namespace lockstep;

/// Quick steps, in which what is not the model's own work weighs most.
struct ShortTexts : benchmarks::MiniLM {
  static auto inputs(int64_t batch) { return MiniLM::inputs(batch, 16); }
};
struct Pictures : benchmarks::ResNet18 {
  static Module make() { return Module(models::ResNetOptions{.num_classes = 10}); }  // the stem for ImageNet
};

struct Settings {
  std::string model{}, strategy{};
  int replicas = 0;
  int64_t batch = 0;
  int steps = 0;
};

constexpr auto kFlags = std::to_array<Flag<Settings>>({
    benchmarks::place<Settings>("MODEL", &Settings::model, "What is trained",
                                FlagCheck::one_of("minilm resnet18")),
    benchmarks::place<Settings>("STRATEGY", &Settings::strategy,
                                "Without a wrapper, with DataParallel or with DistributedDataParallel",
                                FlagCheck::one_of("single dp ddp")),
    benchmarks::count<Settings>("REPLICAS", &Settings::replicas, "Replicas of DataParallel"),
    benchmarks::count<Settings>("BATCH", &Settings::batch, "Samples of a step of this process"),
    benchmarks::count<Settings>("STEPS", &Settings::steps, "Steps that are measured"),
});

template <class Module, class Inputs>
std::function<at::Tensor(const Inputs&)> make_forward(const Settings& settings, Module& model) {
  if (settings.strategy == "single") return [&](const Inputs& x) { return model(x); };
  if (settings.strategy == "ddp") {
    const auto ddp = std::make_shared<DistributedDataParallel<Module>>(model);
    return [=](const Inputs& x) { return (*ddp)(x); };
  }
  const auto dp =
      std::make_shared<DataParallel<Module>>(model, DataParallelOptions{.replicas = settings.replicas});
  return [=](const Inputs& x) { return (*dp)(x); };
}

/// Pages that processes share count once over all of them.
double memory_of_job(const World& world) {
  double kib = 0;
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Pss:")) kib = std::stod(line.substr(4));
  }
  const at::Tensor sum = at::tensor({kib}, at::kDouble);
  world.all_reduce(sum);
  return sum.item<double>() * 1024;
}

template <class Kind>
void measure(const Settings& settings) {
  keep_freed_memory();  // else it is chance how often the allocator gives gradients back to the system
  const World world = init();
  const int64_t batch = settings.batch / world.size();
  at::manual_seed(1);
  auto model = Kind::make();
  const auto inputs = Kind::inputs(batch);
  const auto forward = make_forward<typename Kind::Module, std::decay_t<decltype(inputs)>>(settings, model);
  FusedAdamW optimizer(parameters(model), torch::optim::AdamWOptions(1e-5));
  const at::Tensor labels = at::randint(2, {batch}, at::kLong);
  const auto step = [&] {
    optimizer.zero_grad();
    at::cross_entropy_loss(forward(inputs), labels).backward();
    optimizer.step();
  };
  for (int i = 0; i < 2; ++i) step();  // touch all memory
  world.barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < settings.steps; ++i) step();
  world.barrier();
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  const double memory = memory_of_job(world);
  if (world.rank() != 0) return;
  fmt::print(R"({{"samples_per_second": {}, "pss_bytes": {:.0f}}})"
             "\n",
             static_cast<double>(batch * world.size() * settings.steps) / time.count(), memory);
}

int run(int argc, char** argv) {
  const auto settings = parse_table<Settings>("data_parallel_cost",
                                              "Trains a model on random inputs and prints samples per second",
                                              kFlags, argc, argv);
  if (!settings) return 0;
  if (settings->model == "minilm") {
    measure<ShortTexts>(*settings);
  } else {
    measure<Pictures>(*settings);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("data_parallel_cost", [&] { return run(argc, argv); });
}
