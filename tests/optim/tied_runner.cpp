// Trains a module with tied weights for comparison with Python's optimizers: tied_runner OPTIMIZER INPUTS OUTPUTS
//   INPUTS: w.NAME: first values, x.STEP: tokens, y.STEP: labels
//   OUTPUTS: w.NAME, average.NAME: the average of the weights, p.N: parameters(), norm.STEP, state.N.NAME
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/parameters.h"
#include "tests/optim/tied_net.h"

namespace {

using namespace lockstep;
using lockstep::testing::TiedNet;
using Tensors = std::map<std::string, at::Tensor>;

/// OPTIMIZER is KIND.LIST: ours or LibTorch's, over LibTorch's list, ours, or the groups by weight decay.
template <class Ours, class LibTorchs, class Options>
std::unique_ptr<torch::optim::Optimizer> make(const std::string& kind, const std::string& list,
                                              const TiedNet& net, const Options& options) {
  const auto groups = list == "groups" ? parameter_groups(*net, options)
                                       : std::vector<torch::optim::OptimizerParamGroup>{
                                             list == "libtorch" ? net->parameters() : parameters(net)};
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (kind.ends_with("_torch")) {
    optimizer = std::make_unique<LibTorchs>(groups, options);
  } else {
    optimizer = std::make_unique<Ours>(groups, options);
  }
  if (list == "groups") set_group_options(*optimizer, groups);
  return optimizer;
}

Tensors train(const std::string& name, const Tensors& inputs) {
  TiedNet net;
  net->to(at::kDouble);
  {
    const at::NoGradGuard no_grad;
    for (auto& item : net->named_parameters()) {
      const auto value = inputs.find("w." + item.key());
      if (value != inputs.end()) item.value().copy_(value->second);  // a tied one has its first name there
    }
  }
  const std::string kind = name.substr(0, name.find('.')), list = name.substr(name.find('.') + 1);
  const auto optimizer =
      kind.starts_with("adamw")
          ? make<FusedAdamW, torch::optim::AdamW>(kind, list, net,
                                                  torch::optim::AdamWOptions(0.05).weight_decay(0.1))
          : make<FusedSGD, torch::optim::SGD>(kind, list, net,
                                              torch::optim::SGDOptions(0.2).momentum(0.9).weight_decay(0.05));
  ExponentialMovingAverage average(*net, 0.7);
  Tensors outputs;
  for (int step = 0; inputs.contains(fmt::format("x.{}", step)); ++step) {
    optimizer->zero_grad();
    net->loss(inputs.at(fmt::format("x.{}", step)), inputs.at(fmt::format("y.{}", step))).backward();
    outputs[fmt::format("norm.{}", step)] =
        at::scalar_tensor(clip_grad_norm_(net->parameters(), 0.5), at::kDouble);
    optimizer->step();
    average.update();
  }
  for (const auto& item : net->named_parameters()) {
    outputs["w." + item.key()] = item.value().detach().clone();
  }
  for (const auto& [key, tensor] : average.state_dict().tensors) outputs["average." + key] = tensor;
  const auto all = parameters(net);
  for (size_t p = 0; p < all.size(); ++p) outputs[fmt::format("p.{}", p)] = all[p].detach().clone();
  for (const auto& [key, tensor] : optimizer_state_dict(*optimizer).tensors) outputs[key] = tensor;
  return outputs;
}

}  // namespace

int main(int argc, char** argv) {
  return run_main("tied_runner", [&] {
    if (argc != 4) throw ValueError("usage: tied_runner OPTIMIZER INPUTS OUTPUTS");
    checkpoint::save_safetensors(argv[3], train(argv[1], checkpoint::load_safetensors(argv[2]).tensors));
    return 0;
  });
}
