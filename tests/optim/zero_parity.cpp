// Runs ZeroRedundancyOptimizer as zero_parity_test.py does in Python and writes what came out.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <sstream>

#include "lockstep/base/main.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/optim/zero_redundancy_optimizer.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

using Tensors = std::map<std::string, at::Tensor>;
using torch::optim::OptimizerParamGroup;

const std::vector<std::vector<int64_t>> kShapes{{7, 5}, {5000}, {40, 30}, {3}, {30}, {1}, {64, 33}};

void add_state(Tensors& out, const std::string& name, const torch::optim::OptimizerParamState& state) {
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWParamState*>(&state)) {
    out[name + ".exp_avg"] = adamw->exp_avg();
    out[name + ".exp_avg_sq"] = adamw->exp_avg_sq();
    out[name + ".max_exp_avg_sq"] = adamw->max_exp_avg_sq();
    out[name + ".step"] = at::scalar_tensor(adamw->step(), at::kFloat);
  } else if (const auto* adam = dynamic_cast<const torch::optim::AdamParamState*>(&state)) {
    out[name + ".exp_avg"] = adam->exp_avg();
    out[name + ".exp_avg_sq"] = adam->exp_avg_sq();
    out[name + ".step"] = at::scalar_tensor(adam->step(), at::kFloat);
  } else {
    out[name + ".momentum_buffer"] =
        dynamic_cast<const torch::optim::SGDParamState&>(state).momentum_buffer();
  }
}

template <class Optimizer>
void steps(Optimizer& optimizer, const std::vector<at::Tensor>& parameters, int from, int to) {
  for (int step = from; step < to; ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      // The fourth has none now and then.
      parameters[i].mutable_grad() = i == 3 && step % 2 == 1
                                         ? at::Tensor()
                                         : wave(parameters[i].sizes(), 10 * step + static_cast<int>(i));
    }
    optimizer.param_groups()[0].options().set_lr(0.01 / (step + 1));
    optimizer.step();
  }
}

template <class OptimizerT, class Options>
void run(Tensors& out, const std::string& name, Options options, bool view) {
  ProcessGroup& group = world();
  const int to = 1 % group.size();
  std::vector<at::Tensor> parameters;
  for (const auto& shape : kShapes) {
    parameters.push_back(wave(shape, static_cast<double>(parameters.size())).requires_grad_());
  }
  std::vector<OptimizerParamGroup> groups;
  const auto begin = parameters.begin();
  groups.emplace_back(std::vector<at::Tensor>(begin, begin + 4), std::make_unique<Options>(options));
  groups.emplace_back(std::vector<at::Tensor>(begin + 4, parameters.end()),
                      std::make_unique<Options>(Options(options).weight_decay(0.2)));
  const ZeroRedundancyOptimizerOptions zero{.parameters_as_bucket_view = view};
  ZeroRedundancyOptimizer<OptimizerT> optimizer(groups, options, zero);
  check_throws<Error>([&] { optimizer.state_dict(); }, "consolidate_state_dict(");
  steps(optimizer, parameters, 0, 3);
  parameters.push_back(wave({20, 10}, 50).requires_grad_());
  optimizer.add_param_group(OptimizerParamGroup({parameters.back()}, std::make_unique<Options>(options)));
  steps(optimizer, parameters, 3, 5);
  // Frozen from here on: its gradient stays away.
  parameters[2].requires_grad_(false);
  optimizer.consolidate_state_dict(to);
  std::string saved;
  if (group.rank() == to) {
    const OptimizerT& plain = optimizer.state_dict();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto state = plain.state().find(parameters[i].unsafeGetTensorImpl());
      if (state == plain.state().end()) continue;
      add_state(out, fmt::format("{}/state.{}", name, i), *state->second);
    }
    std::ostringstream stream;
    torch::save(optimizer, stream);
    saved = stream.str();
  }
  // Every rank goes on with an optimizer that was made from what one has saved.
  saved = group.broadcast_bytes(saved, {.src = to});
  std::vector<OptimizerParamGroup> again;
  for (const OptimizerParamGroup& each : optimizer.param_groups()) again.push_back(each);
  ZeroRedundancyOptimizer<OptimizerT> loaded(again, options, zero);
  std::istringstream stream(saved);
  torch::load(loaded, stream);
  steps(loaded, parameters, 5, 7);
  for (size_t i = 0; i < parameters.size(); ++i) {
    out[fmt::format("{}/p.{}", name, i)] = parameters[i].detach().clone();
  }
  for (size_t rank = 0; rank < loaded.partition_parameters().size(); ++rank) {
    for (size_t g = 0; g < 3; ++g) {
      std::vector<int64_t> numbers;
      for (const at::Tensor& parameter : loaded.partition_parameters()[rank][g]) {
        size_t i = 0;
        while (!parameters[i].is_same(parameter)) ++i;
        numbers.push_back(static_cast<int64_t>(i));
      }
      out[fmt::format("{}/partition.{}.{}", name, rank, g)] = at::tensor(numbers, at::kLong);
    }
  }
}

/// Writes each rank's results into a file of `directory`, named after the rank.
void write_parity(const std::string& directory) {
  Tensors out;
  run<torch::optim::SGD>(out, "sgd", torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.05), false);
  run<FusedSGD>(out, "fused_sgd", torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.05), true);
  run<torch::optim::Adam>(out, "adam", torch::optim::AdamOptions(0.01).betas({0.8, 0.95}).eps(1e-6), true);
  const auto adamw = torch::optim::AdamWOptions(0.01).betas({0.8, 0.95}).eps(1e-6).amsgrad(true);
  run<FusedAdamW>(out, "fused_adamw", adamw, false);
  checkpoint::save_safetensors(fmt::format("{}/{}", directory, world().rank()), out);
}

}  // namespace
}  // namespace lockstep::testing

/// `zero_parity_runs DIRECTORY`
int main(int argc, char** argv) {
  return lockstep::run_main(argv[0], [&] {
    if (argc != 2) throw lockstep::ValueError("name the directory for the results");
    lockstep::testing::write_parity(argv[1]);
    return 0;
  });
}
