// A rank of `lockstep bench optimizer`: times what happens between complete gradients and updated parameters,
// in three ways that take turns. Rank 0 prints the results, a line each.
//   lockstep-bench-optimizer-rank MILLIONS_OF_PARAMETERS ROUNDS
#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <malloc.h>
#include <torch/csrc/autograd/function.h>

#include <array>
#include <chrono>
#include <fstream>
#include <functional>

#include "bench/places.h"
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/fused_zero_optimizer.h"
#include "lockstep/parallel/autograd_node.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"

namespace {

using namespace lockstep;
using Clock = std::chrono::steady_clock;

constexpr int64_t kWidth = 1024;
constexpr double kMaxNorm = 1;  // far below the gradients' norm, so that clipping scales

/// Hands every parameter a gradient of ones, or says that what it has is complete: then backward is nothing
/// but what DistributedDataParallel does.
struct FeedNode : torch::autograd::Node {
  std::vector<at::Tensor> parameters;
  bool gives = false;
  torch::autograd::variable_list apply(torch::autograd::variable_list&& /*gradients*/) override {
    torch::autograd::variable_list result(parameters.size());
    for (size_t i = 0; gives && i < parameters.size(); ++i) {
      result[i] = at::ones({1}).expand(parameters[i].sizes());
    }
    return result;
  }
};

/// Layers of kWidth x kWidth weights and kWidth biases.
struct FeedModelImpl : torch::nn::Module {
  explicit FeedModelImpl(int64_t layers) {
    for (int64_t i = 0; i < layers; ++i) {
      register_parameter(fmt::format("weight{}", i), at::randn({kWidth, kWidth}).mul_(0.02));
      register_parameter(fmt::format("bias{}", i), at::zeros({kWidth}));
    }
  }
  at::Tensor forward(bool gives) {
    auto node = make_node<FeedNode>();
    node->parameters = parameters();
    node->gives = gives;
    node->set_next_edges(torch::autograd::collect_next_edges(node->parameters));
    at::Tensor output = at::zeros({1});
    torch::autograd::create_gradient_edge(output, std::move(node));
    return output;
  }
};
TORCH_MODULE(FeedModel);

/// PSS of this process in bytes: shared pages count in parts.
double proportional_set_size() {
  ::malloc_trim(0);
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    if (word != "Pss:") continue;
    double kib = 0;
    file >> kib;
    return kib * 1024;
  }
  throw Error("/proc/self/smaps_rollup has no Pss");
}

/// The mean over all ranks, none of which goes on before.
double mean_memory(const World& world) {
  world.barrier();
  const at::Tensor value = at::tensor({proportional_set_size()}, at::kDouble);
  world.all_reduce(value, {.op = ReduceOp::AVG});
  return value.item<double>();
}

struct Contestant {
  std::string name;
  FeedModel model{nullptr};
  std::shared_ptr<DistributedDataParallel<FeedModel>> ddp;
  std::function<void()> zero_grad, clip, step;
  std::vector<at::Tensor> gradients;  // in the buckets
  double memory = 0, memory_on_paper = 0;
  std::vector<double> seconds[2];  // without and with clipping
};

template <class OptimizerT>
void use(Contestant& contestant, std::shared_ptr<OptimizerT> optimizer) {
  contestant.zero_grad = [optimizer] { optimizer->zero_grad(); };
  contestant.step = [optimizer] { optimizer->step(); };
  if constexpr (requires { optimizer->clip_grad_norm_(kMaxNorm); }) {
    contestant.clip = [optimizer] { optimizer->clip_grad_norm_(kMaxNorm); };
  } else {
    contestant.clip = [model = contestant.model] { clip_grad_norm_(model->parameters(), kMaxNorm); };
  }
}

/// Builds one, trains it for two steps and looks at what it takes.
Contestant make_contestant(const World& world, const std::string& name, int64_t layers) {
  const torch::optim::AdamWOptions options(1e-4);
  const double before = mean_memory(world);
  Contestant contestant;
  contestant.name = name;
  contestant.model = FeedModel(layers);
  contestant.ddp = std::make_shared<DistributedDataParallel<FeedModel>>(contestant.model);
  double bytes = 0;
  for (const at::Tensor& parameter : contestant.model->parameters())
    bytes += static_cast<double>(parameter.nbytes());
  const double share = bytes / world.size();
  if (name == "all-reduce") {
    use(contestant, std::make_shared<FusedAdamW>(contestant.model->parameters(), options));
    contestant.memory_on_paper = 4 * bytes;
  } else {
    const bool shared = name == "shared-parameters";
    use(contestant,
        std::make_shared<FusedZeroRedundancyOptimizer<FusedAdamW>>(
            *contestant.ddp, options, FusedZeroRedundancyOptimizerOptions{.shared_parameters = shared}));
    contestant.memory_on_paper = (shared ? share : bytes) + bytes + 2 * share;
  }
  for (int pass = 0; pass < 2; ++pass) {
    contestant.zero_grad();
    (*contestant.ddp)(true).backward();
    contestant.clip();
    contestant.step();
  }
  // As a forward pass would, every rank looks at every parameter.
  for (const at::Tensor& parameter : contestant.model->parameters()) {
    contestant.gradients.push_back(parameter.grad());
    parameter.detach().sum();
  }
  contestant.memory = mean_memory(world) - before;
  return contestant;
}

/// One sample: every rank rewrites its gradients, then all start together. The forward pass sees that they were
/// zeroed; otherwise the divided optimizers refuse to average gradients that are averages already.
double measure_step(const World& world, Contestant& contestant, const at::Tensor& values, bool clips) {
  const std::vector<at::Tensor> parameters = contestant.model->parameters();
  contestant.zero_grad();
  const at::Tensor output = (*contestant.ddp)(false);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = contestant.gradients[i];
    gradient.view({-1}).copy_(values.narrow(0, 0, gradient.numel()));
    parameters[i].mutable_grad() = gradient;
  }
  world.barrier();
  const auto start = Clock::now();
  output.backward();
  if (clips) contestant.clip();
  contestant.step();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void print_times(const World& world, const Contestant& contestant, bool clips) {
  const auto& seconds = contestant.seconds[clips ? 1 : 0];
  const at::Tensor slowest = at::tensor(seconds, at::kDouble);
  world.all_reduce(slowest, {.op = ReduceOp::MAX});
  if (world.rank() != 0) return;
  std::string line = fmt::format("time {} {}", contestant.name, clips ? 1 : 0);
  for (size_t i = 0; i < seconds.size(); ++i) line += fmt::format(" {:.9f}", slowest.data_ptr<double>()[i]);
  fmt::print("{}\n", line);
}

struct Settings {
  double millions = 0;
  int rounds = 0;
};

constexpr auto kFlags = std::to_array<Flag<Settings>>({
    benchmarks::place<Settings>("MILLIONS_OF_PARAMETERS", &Settings::millions, "Size of the model",
                                FlagCheck::above(0)),
    benchmarks::count<Settings>("ROUNDS", &Settings::rounds, "Rounds that are measured"),
});

int run(int argc, char** argv) {
  const auto settings = parse_table<Settings>("lockstep-bench-optimizer-rank",
                                              "A rank of lockstep bench optimizer", kFlags, argc, argv);
  if (!settings) return 0;
  const auto layers =
      static_cast<int64_t>(std::max(1.0, settings->millions * 1e6 / (kWidth * kWidth + kWidth)));
  const int rounds = settings->rounds;
  at::set_num_threads(1);
  const World world = init();
  at::manual_seed(world.rank());
  const at::Tensor values = at::randn({kWidth * kWidth});
  std::vector<Contestant> contestants;
  for (const char* name : {"all-reduce", "fused-zero", "shared-parameters"}) {
    contestants.push_back(make_contestant(world, name, layers));
  }
  constexpr int kWarmUp = 2;
  for (int round = -kWarmUp; round < rounds; ++round) {
    for (const bool clips : {false, true}) {
      for (Contestant& contestant : contestants) {
        const double seconds = measure_step(world, contestant, values, clips);
        if (round >= 0) contestant.seconds[clips ? 1 : 0].push_back(seconds);
      }
    }
  }
  for (const Contestant& contestant : contestants) {
    for (const bool clips : {false, true}) print_times(world, contestant, clips);
    if (world.rank() == 0) {
      fmt::print("memory {} {:.0f} {:.0f}\n", contestant.name, contestant.memory, contestant.memory_on_paper);
    }
  }
  if (world.rank() == 0) fmt::print("parameters {}\n", layers * (kWidth * kWidth + kWidth));
  world.barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::skip_library_destructors();
  return lockstep::run_main("lockstep-bench-optimizer-rank", [&] { return run(argc, argv); });
}
