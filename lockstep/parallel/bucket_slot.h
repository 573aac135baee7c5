// Where an operation's backward may write the gradient of a parameter, so that it need not be copied there.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch::autograd {
struct Edge;
}

namespace lockstep {

/// The bucket slot, which is the place in its bucket, of the parameter's shape and strides, for the gradient
/// that is to go along `edge`; undefined where there is none. To be asked by the backward of an operation
/// which uses a parameter (lockstep/ops does), once for each use, with the edge to that input and the dtype
/// of the gradient. What is returned is the parameter's grad() from then on: the operation overwrites all of
/// it, since its contents mean nothing, and hands an undefined tensor along the edge in the gradient's place.
/// So neither it nor autograd makes a tensor, and DistributedDataParallel has nothing to copy.
///
/// There is a place only in a backward() that averages, in main memory, for a parameter of
/// DistributedDataParallel (with gradient_as_bucket_view) that has no gradient yet, and so one only in each
/// such backward: another use of the parameter gets none, and autograd adds its gradient (those of several
/// further uses first, which from three uses on may change the last bit). None is given with create_graph, in
/// torch::autograd::grad, and where hooks on the parameter, or anomaly detection, want to see the gradient.
/// An operation that hands the tensor on as well doubles the gradient. To be called by the thread that runs
/// backward; cheap; does not block.
at::Tensor bucket_slot(const torch::autograd::Edge& edge, at::ScalarType dtype);

}  // namespace lockstep
