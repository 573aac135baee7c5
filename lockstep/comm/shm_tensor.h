// Between LibTorch's dtypes and those of the shared-memory core.
#pragma once

#include <c10/core/ScalarType.h>

#include "lockstep/comm/shm/reduce.h"
#include "lockstep/comm/types.h"

namespace lockstep {

/// Throws ValueError naming a dtype that the "lockstep" backend cannot move.
shm::DType to_shm(at::ScalarType dtype);
/// Throws ValueError when `dtype` cannot be combined by `op`.
shm::Reduction to_shm(ReduceOp op, shm::DType dtype);

}  // namespace lockstep
