// What DistributedDataParallel says on standard error, with TORCH_DISTRIBUTED_DEBUG=INFO or at log level info.
#pragma once

#include <torch/nn/module.h>

#include <set>
#include <string>
#include <vector>

#include "lockstep/parallel/ddp_core.h"

namespace lockstep::detail {

/// Rank 0: what was wrapped and how.
void tell_construction(const DDPLoggingData& data);
/// At log level info: the tied parameters of `module`, without those that are `ignored`, and what LibTorch's
/// optimizers do with them, a line for each tensor.
void tell_tied_parameters(const torch::nn::Module& module, const std::set<std::string>& ignored);
/// After a pass. Every rank: the names of its parameters without a gradient, in passes that have some. Rank
/// 0: new buckets, and average times after passes 10, 100, 200, ... (Python's sampling).
void tell_pass(const DDPLoggingData& data, const std::vector<std::string>& unused);

}  // namespace lockstep::detail
