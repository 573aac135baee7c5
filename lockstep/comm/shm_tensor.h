// Between LibTorch's dtypes and those of the shared-memory core.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/comm/types.h"
#include "lockstep/shm/reduce/reduce.h"

namespace lockstep {

/// Throws ValueError when `tensor` has no memory that this backend can reach: undefined, sparse, or not on
/// the CPU.
void check_memory(const at::Tensor& tensor);
/// Throws ValueError as check_memory() does, and for a dtype that the "lockstep" backend cannot move.
shm::DType to_shm(const at::Tensor& tensor);
/// "float32"; LibTorch's own word for a dtype that this backend does not move.
std::string dtype_name(at::ScalarType dtype);
/// `op`. Throws ValueError when `dtype` cannot be combined by it.
ReduceOp checked(ReduceOp op, shm::DType dtype);

}  // namespace lockstep
