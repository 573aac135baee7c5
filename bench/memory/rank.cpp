// memory_rank WAY MODEL: the memory that a model, its gradients and AdamW hold after some steps, over all ranks of the machine, in
// MiB. Rank 0 prints it as a line of JSON.
//
// WAY: ddp, zero, fused_zero or fused_zero_shared. MODEL: bert-base, or LAYERSxWIDTH for linear layers.
#include <malloc.h>

#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <array>
#include <charconv>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/places.h"
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/fused_zero_optimizer.h"
#include "lockstep/optim/zero_redundancy_optimizer.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/parallel/parameters.h"
#include "lockstep/zoo/models/bert.h"

namespace {

using namespace lockstep;

/// This process's part of the machine's memory, in MiB: shared pages count in parts, and what was freed does not count.
double proportional_memory() {
  ::malloc_trim(0);
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Pss:")) return std::stod(line.substr(4)) / 1024;
  }
  throw Error("/proc/self/smaps_rollup has no Pss");
}

double sum_over_ranks(const World& world, double value) {
  world.barrier();
  const at::Tensor sum = at::scalar_tensor(value, at::kDouble);
  world.all_reduce(sum);
  return sum.item<double>();
}

struct TowerImpl : torch::nn::Module {
  TowerImpl(int64_t width, int64_t layers) {
    for (int64_t i = 0; i < layers; ++i) {
      layers_.push_back(register_module(std::to_string(i), torch::nn::Linear(width, width)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers_) x = layer(x).tanh();
    return x;
  }

 private:
  std::vector<torch::nn::Linear> layers_;
};
TORCH_MODULE(Tower);

/// "bert-base", or linear layers.
struct MeasuredModel {
  int64_t layers = 0, width = 0;  // 0: bert-base
};
struct Settings {
  std::string way{};
  MeasuredModel model{};
};

void take_model(Settings& settings, const std::string& flag, const std::string& text) {
  if (text == "bert-base") return;
  auto& [layers, width] = settings.model;
  const char *const begin = text.data(), *const end = begin + text.size();
  const auto first = std::from_chars(begin, end, layers);
  const bool has_cross = first.ptr != end && *first.ptr == 'x';
  const auto second = std::from_chars(has_cross ? first.ptr + 1 : end, end, width);
  if (second.ec != std::errc() || second.ptr != end || layers < 1 || width < 1)
    throw ValueError(flag + " is '" + text + "'; it must be bert-base or LAYERSxWIDTH, as in 8x2048");
}

constexpr auto kFlags = std::to_array<Flag<Settings>>({
    benchmarks::place<Settings>("WAY", &Settings::way,
                                "DistributedDataParallel with AdamW, or with a sharded optimizer",
                                FlagCheck::one_of("ddp zero fused_zero fused_zero_shared")),
    {.name = "MODEL",
     .target = taken_by<take_model, Settings>,
     .words = "bert-base, or LAYERSxWIDTH for linear layers",
     .is_required = true,
     .is_place = true},
});

template <class Model, class Input>
void measure(const World& world, const std::string& way, double before, Model model, const Input& input) {
  DistributedDataParallel ddp(model);
  const torch::optim::AdamWOptions options(1e-4);
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  if (way == "ddp") {
    optimizer = std::make_shared<torch::optim::AdamW>(parameters(model), options);
  } else if (way == "zero") {
    optimizer = std::make_shared<ZeroRedundancyOptimizer<torch::optim::AdamW>>(parameters(model), options);
  } else {
    optimizer = std::make_shared<FusedZeroRedundancyOptimizer<torch::optim::AdamW>>(
        ddp, options, FusedZeroRedundancyOptimizerOptions{.shared_parameters = way == "fused_zero_shared"});
  }
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    ddp(input).square().mean().backward();
    optimizer->step();
  }
  const double after = sum_over_ranks(world, proportional_memory());
  int64_t elements = 0;
  for (const at::Tensor& parameter : parameters(model)) elements += parameter.numel();
  if (world.rank() == 0) {
    fmt::print("{{\"mib\": {:.1f}, \"parameters_mib\": {:.4f}}}\n", after - before,
               static_cast<double>(elements) * 4 / (1 << 20));
  }
}

int run(int argc, char** argv) {
  const auto settings = parse_table<Settings>(
      "memory_rank", "Prints the memory that a model, its gradients and AdamW hold", kFlags, argc, argv);
  if (!settings) return 0;
  const std::string& way = settings->way;
  const auto [layers, width] = settings->model;
  at::set_num_threads(1);
  const World world = init();
  const double before = sum_over_ranks(world, proportional_memory());
  if (layers == 0) {
    const models::BertBatch batch{
        .input_ids = at::randint(1, 30000, {2, 16}, at::kLong), .token_type_ids = {}, .attention_mask = {}};
    measure(world, way, before, models::BertForSequenceClassification(models::BertConfig{}), batch);
  } else {
    measure(world, way, before, Tower(width, layers), at::randn({8, width}));
  }
  world.barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_main("memory_rank", [&] { return run(argc, argv); });
}
