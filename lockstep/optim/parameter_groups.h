// Which parameters take weight decay, by Hugging Face's rule.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include <string>
#include <vector>

namespace lockstep {

/// True unless `name` (as in named_parameters, e.g. "bert.encoder.layer.0.output.LayerNorm.weight") is a bias
/// or belongs to a normalization: the Trainer's rule for names.
bool takes_weight_decay(const std::string& name);

/// Two groups for AdamW, in the order of `module`'s parameters: with `options`, and with weight decay 0.
/// Parameters that need no gradient are left out; a group without parameters is too.
std::vector<torch::optim::OptimizerParamGroup> weight_decay_groups(const torch::nn::Module& module,
                                                                   const torch::optim::AdamWOptions& options);

}  // namespace lockstep
