// Which tensors share memory: what an operation may not write while it reads, or write twice.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "lockstep/base/extent.h"

namespace lockstep {

/// From a tensor's first element to the end of its last one. Empty if it has no elements, or no memory of its own to speak of.
base::Extent compute_extent(const at::Tensor& tensor);

/// Do two elements of `tensor` lie at one place in memory, as expand() makes them?
bool overlaps_itself(const at::Tensor& tensor);

/// Do the two share no element, as far as their strides tell? They tell it of what chunk(), unbind() or a slice with a
/// step makes of a tensor, along any dimension. False does not mean that they share one.
bool lie_apart(const at::Tensor& a, const at::Tensor& b);

/// Do the memory ranges of the two meet? For contiguous tensors that is exact; tensors with gaps may share a
/// range and no element.
bool may_overlap(const at::Tensor& a, const at::Tensor& b);

/// "shape [3, 4] and strides [0, 1]"
std::string describe_layout(const at::Tensor& tensor);

/// Throws ValueError, which begins with `what`, if two elements of `outputs` lie at one place in memory:
/// within one tensor, or in two of them.
void check_apart(const char* what, const std::vector<at::Tensor>& outputs);

/// `input`, or a copy of it if one of `outputs` lies over it. outputs[own] may be the input itself: that
/// output takes what the input holds; -1: none may.
at::Tensor apart_from(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int own);

/// For operations that are in flight together: each of `inputs`, or a copy of it if an output of another
/// operation lies over it. outputs[i] are those of the operation that reads inputs[i].
std::vector<at::Tensor> apart_from_others(const std::vector<at::Tensor>& inputs,
                                          const std::vector<std::vector<at::Tensor>>& outputs);

}  // namespace lockstep
