// The state of torch::optim's optimizers, divided and put together again.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>

#include "lockstep/optim/zero_partition.h"

namespace lockstep::detail {

using ParamState = torch::optim::OptimizerParamState;

/// The part of `whole`, the state of `parameter` in SGD, Adam, AdamW, Adagrad or RMSprop, that belongs to its
/// elements in `range`.
std::unique_ptr<ParamState> slice_of_state(const ParamState& whole, const at::Tensor& parameter,
                                           ElementRange range);
/// Puts `part`, the state of elements `range` of `parameter`, into `whole`, which is made when it is null.
void merge_state(std::unique_ptr<ParamState>& whole, const ParamState& part, const at::Tensor& parameter,
                 ElementRange range);

/// What torch::save writes for `optimizer`, and its opposite; the reader has the same groups of parameters.
std::string optimizer_bytes(const torch::optim::Optimizer& optimizer);
void read_optimizer(torch::optim::Optimizer& optimizer, const std::string& bytes);

}  // namespace lockstep::detail
