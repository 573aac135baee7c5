// Where an operation's backward may write the gradient of a parameter, so that it need not be copied there.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch::autograd {
struct Edge;
}

namespace lockstep {

/// The place in its bucket, of the parameter's shape and strides, for the gradient that is to go along
/// `edge`; undefined where there is none. To be asked by the backward of an operation which uses a parameter
/// (lockstep/ops does), once for each use, with the edge to that input and the dtype of the gradient: the
/// operation then overwrites the whole tensor, whose contents mean nothing, and returns it, instead of a new
/// one that DistributedDataParallel copies to the same place and drops. It may also return something else.
///
/// There is a place only in a backward() that averages, for a parameter of DistributedDataParallel (with
/// gradient_as_bucket_view) that has no gradient yet, and one only in each such backward: another use of the
/// parameter gets none, and autograd adds the two. None is given with create_graph, in torch::autograd::grad
/// (its results would change when the place is used again), and where hooks on the parameter could keep the
/// tensor. To be called by the thread that runs backward; cheap; does not block.
at::Tensor gradient_home(const torch::autograd::Edge& edge, at::ScalarType dtype);

}  // namespace lockstep
