// The sum of sparse tensors, which torch.distributed has and the core, which knows bytes in order, has not.
#pragma once

#include <chrono>
#include <optional>

#include "lockstep/comm/process_group.h"

namespace lockstep::backends {

/// The sum (op AVG: the mean) of every rank's `tensor`, coalesced; `tensor` itself stays as it is. tensor:
/// sparse COO, same shape, sparse dimensions and dtype on all ranks, any number of entries; otherwise
/// ValueError. Blocks.
at::Tensor sparse_all_reduce(const ProcessGroup& group, const at::Tensor& tensor, ReduceOp op,
                             std::optional<std::chrono::milliseconds> timeout);

}  // namespace lockstep::backends
