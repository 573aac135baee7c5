// The algorithms on the tensors of a process group, over its send and recv.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group/impl.h"

namespace lockstep::algorithms {

/// tensor: contiguous. algorithm: neither AUTO nor DIRECT. machines: of each rank of the group. Blocks. Half-precision tensors are added in fp32
/// and rounded once.
void all_reduce(ProcessGroup::Impl& group, AllReduceAlgorithm algorithm, const at::Tensor& tensor,
                ReduceOp op, const std::vector<int>& machines, std::chrono::milliseconds timeout);

}  // namespace lockstep::algorithms
