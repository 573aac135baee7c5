// Which parameters take weight decay, by Hugging Face's rule, and which learning rate, by rules of the user's.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// True unless `name` (as in named_parameters, e.g. "bert.encoder.layer.0.output.LayerNorm.weight") is a bias
/// or belongs to a normalization: the Trainer's rule for names.
bool takes_weight_decay(const std::string& name);

/// Options of the parameters whose names hold a match of `pattern`, a regular expression (ECMAScript).
struct ParameterRule {
  std::string pattern;                    ///< a match anywhere in the name counts
  std::optional<double> learning_rate{};  ///< default: the optimizer's
  std::optional<double> weight_decay{};   ///< default: the optimizer's, or 0 by takes_weight_decay()
};

/// Groups for an optimizer with `options`, each with its learning rate and weight decay, in the order in which
/// `module`'s parameters first need them. A tensor with several names (tied weights) is one parameter, and has its
/// first name. A rule of weight decay goes before takes_weight_decay. Parameters
/// that need no gradient are left out. Without rules there are up to two groups: with `options`, and with
/// weight decay 0. Throws ValueError for a rule that is no regular expression or fits no parameter.
/// Defined for AdamOptions, AdamWOptions and SGDOptions.
template <class Options>
std::vector<torch::optim::OptimizerParamGroup> parameter_groups(const torch::nn::Module& module,
                                                                const Options& options,
                                                                const std::vector<ParameterRule>& rules = {});

/// Gives the groups of `optimizer`, which was made of `groups` and defaults, the options of `groups` as they are. LibTorch
/// takes a value that equals the class's own default (a weight decay of 0, a learning rate of 1e-3) for one that was
/// not set, and puts the optimizer's default in its place (torch/optim/optimizer.h).
void set_group_options(torch::optim::Optimizer& optimizer,
                       const std::vector<torch::optim::OptimizerParamGroup>& groups);

}  // namespace lockstep
