// The state of torch::optim's optimizers, divided and put together again.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/process_group.h"
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

namespace lockstep {

struct BroadcastOptimizerStateOptions {
  int src = 0;  ///< the rank whose state all get
  /// Default: the group of all ranks that lockstep::init() made.
  std::optional<ProcessGroup> process_group{};
};

/// Gives every rank the options and the state of one rank's optimizer, as after loading a checkpoint on that
/// rank alone (Horovod's broadcast_optimizer_state). The optimizers are of one type, over the same parameters
/// in the same groups. Not for divided ones, whose load_state_dict() takes a plain optimizer. Called by all
/// ranks; blocks.
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer,
                               BroadcastOptimizerStateOptions options = {});

}  // namespace lockstep
