// The optimizer that TrainingArguments name.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// `optim` over the parameters of `module`, with learning_rate, weight_decay (not on biases and
/// normalizations), adam_beta1, adam_beta2, adam_epsilon and optim_args; with zero_redundancy_optimizer one
/// whose state is divided among the ranks of `group`, which all call this then. Throws ValueError for
/// optim_args that it does not have.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainingArguments& arguments,
                                                        const torch::nn::Module& module,
                                                        const std::vector<ParameterRule>& rules,
                                                        const ProcessGroup& group);

}  // namespace lockstep
