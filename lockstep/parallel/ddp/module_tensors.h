// The parameters and buffers of a wrapped module.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/ddp/ddp_options.h"
#include "lockstep/parallel/ddp/named_tensor.h"

namespace lockstep::detail {

/// Each tensor once, without those that are to be ignored.
struct ModuleTensors {
  std::vector<at::Tensor> parameters{}, buffers{};
  std::vector<NamedTensor> named_parameters{};
  std::string description{};  ///< what must be the same on all ranks of each, a line each
  std::string of_buffers{};   ///< the lines of the buffers alone
  std::vector<std::pair<std::string, at::Tensor>>
      written{};  ///< that must be writable; with what an error calls them
};

/// Throws ValueError for a name in parameters_and_buffers_to_ignore that the module does not have.
void check_ignored_names(const torch::nn::Module& module, const DistributedDataParallelOptions& options);
/// Those of `module`; buffers have become what mixed_precision says.
ModuleTensors collect_tensors(const torch::nn::Module& module, const DistributedDataParallelOptions& options);
/// The parameters of `now` that `wrapped` does not have, and buffers of `now` that cannot be written, for an error; empty:
/// there are none.
std::string describe_additions(const ModuleTensors& wrapped, const ModuleTensors& now);
/// Rank `source`'s parameters, and buffers `with_buffers`, to all. Called by all; blocks.
void broadcast_tensors(const ProcessGroup& group, const ModuleTensors& tensors, int source,
                       bool with_buffers);
/// Parameters whose embedding hands out sparse gradients.
std::unordered_set<const at::TensorImpl*> find_sparse_parameters(const torch::nn::Module& module);

}  // namespace lockstep::detail
