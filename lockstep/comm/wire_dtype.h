// In which form the sums of an all-reduce travel between machines: what may be asked for, and what the environment says.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/comm/joining/store_round.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/process_group/impl.h"

namespace lockstep {

/// LOCKSTEP_WIRE_DTYPE's; EXACT: it is not set. Throws ValueError for another name than "bf16", "bfloat16" and "exact".
WireDtype find_wire_dtype();
/// "bf16" or "exact".
const char* name_of(WireDtype dtype);

/// The backend Gloo sends all bits, whatever the environment asks for: rank 0 says so. Throws as find_wire_dtype().
void warn_of_exact_sums(int rank);

/// Throws CommError, on all ranks, unless the environment says the same on each. Blocks until all have called it.
void agree_on_wire_dtype(const StoreRounds& rounds);

/// Throws Error unless the environment says what it said for the process whose place, that of `rank`, this one takes: `before`, a
/// name_of(). Otherwise this process's sums would have other bits.
void check_same_wire_dtype(int rank, const std::string& before);

/// Are there sums that may be rounded? For BFLOAT16.
bool has_roundable_sums(at::ScalarType dtype, ReduceOp op);

/// Throws ValueError if `options` ask for what `group` cannot do with such a tensor.
void check_wire_dtype(const ProcessGroup::Impl& group, const at::Tensor& tensor,
                      const AllReduceOptions& options, AllReduceAlgorithm algorithm);

}  // namespace lockstep
