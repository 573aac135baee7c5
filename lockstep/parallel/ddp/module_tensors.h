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
  std::vector<std::pair<std::string, at::Tensor>>
      written{};  ///< that must be writable; with what an error calls them
};

/// Those of `module`; buffers have become what mixed_precision says. Throws ValueError for a name to ignore that the
/// module does not have.
ModuleTensors collect_tensors(const torch::nn::Module& module, const DistributedDataParallelOptions& options);
/// Rank `source`'s parameters and buffers to all. Called by all; blocks.
void broadcast_tensors(const ProcessGroup& group, const ModuleTensors& tensors, int source);
/// Parameters whose embedding hands out sparse gradients.
std::unordered_set<const at::TensorImpl*> find_sparse_parameters(const torch::nn::Module& module);

}  // namespace lockstep::detail
