// The tensors of an optimizer's parameter groups, each once.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <string>
#include <vector>

namespace lockstep::detail {

using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

/// By group: its tensors without those that are listed before, in this group or in an earlier one.
std::vector<std::vector<at::Tensor>> tensors_once(const ParamGroups& groups);

/// What a parameter is called in an error; empty: it has no name.
using NameOfParameter = std::function<std::string(const at::Tensor&)>;

/// `groups` as an optimizer takes them: a tensor that a group lists several times (tied weights) is in it
/// once. Throws ValueError, which begins with `who`, for a tensor in two groups: it would have two learning
/// rates.
ParamGroups groups_once(const std::string& who, const ParamGroups& groups, const NameOfParameter& name = {});
/// Throws Error, which begins with `who`, inside a forward or backward with mixed_precision of a module that has one of
/// the tensors: a step would change a copy that goes away.
void verify_full_precision(const char* who, const ParamGroups& groups);
/// Does what groups_once() does in place; it is quick if no tensor is repeated.
void keep_once(const std::string& who, ParamGroups& groups);

}  // namespace lockstep::detail
