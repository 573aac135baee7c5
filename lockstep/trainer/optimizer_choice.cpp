#include "lockstep/trainer/optimizer_choice.h"

#include <torch/optim/adam.h>

#include "lockstep/optim/adamw.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/optim/zero_redundancy_optimizer.h"

namespace lockstep {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

template <class Options>
Options adam_options(const TrainingArguments& arguments) {
  return Options(arguments.learning_rate)
      .betas({arguments.adam_beta1, arguments.adam_beta2})
      .eps(arguments.adam_epsilon)
      .weight_decay(arguments.weight_decay);
}

SGDOptions sgd_options(const TrainingArguments& arguments) {
  const auto given = arguments.optimizer_arguments();
  return SGDOptions(arguments.learning_rate)
      .weight_decay(arguments.weight_decay)
      .momentum(given.momentum)
      .dampening(given.dampening)
      .nesterov(given.nesterov);
}

template <class OptimizerT, class Options>
std::unique_ptr<torch::optim::Optimizer> make(const TrainingArguments& arguments,
                                              const torch::nn::Module& module,
                                              const std::vector<ParameterRule>& rules,
                                              const ProcessGroup& group, const Options& options) {
  const auto groups = parameter_groups(module, options, rules);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (arguments.zero_redundancy_optimizer && group.size() > 1) {
    optimizer = std::make_unique<ZeroRedundancyOptimizer<OptimizerT>>(
        groups, options, ZeroRedundancyOptimizerOptions{.process_group = group});
  } else {
    optimizer = std::make_unique<OptimizerT>(groups, options);
  }
  set_group_options(*optimizer, groups);
  return optimizer;
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainingArguments& arguments,
                                                        const torch::nn::Module& module,
                                                        const std::vector<ParameterRule>& rules,
                                                        const ProcessGroup& group) {
  if (arguments.optim == "sgd") {
    return make<FusedSGD>(arguments, module, rules, group, sgd_options(arguments));
  }
  if (arguments.optim == "adam") {
    return make<torch::optim::Adam>(arguments, module, rules, group, adam_options<AdamOptions>(arguments));
  }
  if (arguments.optim == "adamw_torch") {
    return make<torch::optim::AdamW>(arguments, module, rules, group, adam_options<AdamWOptions>(arguments));
  }
  return make<FusedAdamW>(arguments, module, rules, group, adam_options<AdamWOptions>(arguments));
}

}  // namespace lockstep
