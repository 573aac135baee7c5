// The collectives that combine elements, from the arguments of ProcessGroup's members.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/process_group/arguments.h"
#include "lockstep/comm/process_group/collective.h"
#include "lockstep/comm/process_group/prepared.h"

namespace lockstep {

// make_x: borrows its arguments. prepare_x: for tensors of any layout. All throw ValueError for arguments that
// do not go together.

/// Can its elements be combined where and as they lie?
inline bool is_reducible_as_it_lies(const at::Tensor& tensor, ReduceOp op) {
  return lies_plainly(tensor) && !tensor.is_complex() && op != ReduceOp::PREMUL_SUM;
}
/// tensor: is_reducible_as_it_lies().
inline Collective make_all_reduce(const at::Tensor& tensor, ReduceOp op, std::optional<WireDtype> wire_dtype,
                                  std::chrono::milliseconds timeout) {
  Collective collective = in_place(Collective::Kind::all_reduce, tensor, op, -1, timeout);
  collective.wire_dtype = wire_dtype;
  return collective;
}
PreparedCollective prepare_all_reduce(const Caller& caller, const at::Tensor& tensor,
                                      const AllReduceOptions& options);
PreparedCollective prepare_reduce(const Caller& caller, const at::Tensor& tensor,
                                  const ReduceOptions& options);
PreparedCollective prepare_reduce_scatter(const Caller& caller, const at::Tensor& output,
                                          const at::Tensor& input, const ReduceScatterOptions& options);
/// From one tensor per rank.
PreparedCollective prepare_reduce_scatter(const Caller& caller, const at::Tensor& output,
                                          const std::vector<at::Tensor>& inputs,
                                          const ReduceScatterOptions& options);
Collective make_reduce_parts(const Caller& caller, const at::Tensor& tensor,
                             const std::vector<TensorPart>& parts, ReduceOp op);

}  // namespace lockstep
