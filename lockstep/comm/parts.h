// Collectives on parts of tensors, and memory that all ranks have in common: for FusedZeroRedundancyOptimizer. Not installed.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"

// They need a backend that has them (GroupTraits): "lockstep". ValueError otherwise. All ranks of the group call each of them.
namespace lockstep::detail {

/// Combines the elements that this rank names, of everybody's `tensor`, into its own; its other elements stay as they
/// are. tensor: contiguous, of the same size on all ranks; no two ranks may name the same element.
std::shared_ptr<Work> reduce_parts_async(const ProcessGroup& group, const at::Tensor& tensor,
                                         const std::vector<TensorPart>& parts,
                                         ReduceScatterOptions options = {});

/// Copies parts[r] of rank r's `tensor` to the same places of this rank's, for every other rank r. tensor: contiguous, of
/// the same size on all ranks.
std::shared_ptr<Work> all_gather_parts_async(const ProcessGroup& group, const at::Tensor& tensor,
                                             const std::vector<std::vector<TensorPart>>& parts,
                                             CollectiveOptions options = {});

/// Completes a tensor of empty_common(): each rank has written its part, and those of other machines come to this one's.
/// Afterwards all ranks see all parts. Blocks. Nobody may read the tensor meanwhile.
void share_parts(const ProcessGroup& group, const at::Tensor& tensor,
                 const std::vector<std::vector<TensorPart>>& parts);

/// One uninitialized tensor for all ranks of the group on each machine: what one writes, all there see. It starts on a page of
/// its own, and its memory returns when every rank has dropped its tensor. The arguments are the same on all ranks. Blocks.
at::Tensor empty_common(const ProcessGroup& group, at::IntArrayRef sizes, at::ScalarType dtype);
/// Is this the first of the group's ranks on its machine: the one that fills common memory?
bool is_first_on_machine(const ProcessGroup& group);

}  // namespace lockstep::detail
