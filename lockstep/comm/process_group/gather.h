// The collectives that move tensors and combine none, from the arguments of ProcessGroup's members.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/process_group/arguments.h"
#include "lockstep/comm/process_group/collective.h"
#include "lockstep/comm/process_group/prepared.h"

namespace lockstep {

// make_x: borrows its arguments. prepare_x: for tensors of any layout. All throw ValueError for arguments that
// do not go together.

/// tensor: lies_plainly().
inline Collective make_broadcast(const Caller& caller, const at::Tensor& tensor, int src) {
  check_rank("broadcast: src", src, caller.size);
  return in_place(Collective::Kind::broadcast, tensor, ReduceOp::SUM, src, caller.timeout);
}
PreparedCollective prepare_broadcast(const Caller& caller, const at::Tensor& tensor, int src);
PreparedCollective prepare_scatter(const Caller& caller, const at::Tensor& output,
                                   const std::vector<at::Tensor>& inputs, int src);
PreparedCollective prepare_gather(const Caller& caller, const std::vector<at::Tensor>& outputs,
                                  const at::Tensor& tensor, int dst);
PreparedCollective prepare_all_gather(const Caller& caller, const std::vector<at::Tensor>& outputs,
                                      const at::Tensor& tensor);
/// Into one tensor, in rank order.
PreparedCollective prepare_all_gather_into_tensor(const Caller& caller, const at::Tensor& output,
                                                  const at::Tensor& input);
Collective make_all_gather_parts(const Caller& caller, const at::Tensor& tensor,
                                 const std::vector<std::vector<TensorPart>>& parts);
PreparedCollective prepare_all_to_all_single(const Caller& caller, const at::Tensor& output,
                                             const at::Tensor& input,
                                             const std::vector<int64_t>& output_split_sizes,
                                             const std::vector<int64_t>& input_split_sizes);
PreparedCollective prepare_all_to_all(const Caller& caller, const std::vector<at::Tensor>& outputs,
                                      const std::vector<at::Tensor>& inputs);

// What all_gather_uneven() sends twice: first numbers of rows, then as many rows as the longest has.
/// The number of rows, [1]. Throws ValueError for a tensor of no dimensions.
at::Tensor count_rows(const at::Tensor& tensor);
/// A tensor with as many rows as the largest of `counts` says, the first of which are those of `tensor`.
at::Tensor pad_rows(const at::Tensor& tensor, const std::vector<at::Tensor>& counts);
/// The first counts[i] rows of padded[i], in memory of their own.
std::vector<at::Tensor> cut_rows(std::vector<at::Tensor> padded, const std::vector<at::Tensor>& counts);

}  // namespace lockstep
