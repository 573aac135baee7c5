// A batch on its way through the replicas, and back.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "lockstep/parallel/data_parallel/replica_places.h"
#include "lockstep/parallel/data_parallel/tensor_tree.h"

namespace lockstep::detail {

/// A batch, divided among the replicas.
struct Shards {
  std::vector<at::Tensor> whole;               ///< the caller's tensors
  std::vector<int64_t> sizes;                  ///< samples of each part; as many as replicas take part
  bool is_divided = false;                     ///< false: no tensor has samples, all replicas get the same
  std::vector<std::vector<at::Tensor>> parts;  ///< [part][tensor]; leaves where gradients are to flow back
  std::vector<size_t> wanting;                 ///< tensors of which a gradient is wanted
  std::vector<at::Device> wanting_on;          ///< where those were
  int count() const { return static_cast<int>(sizes.size()); }
};

enum class Join : uint8_t {
  concatenate,
  mean,  ///< one number a replica: their mean, weighted by the samples of each
};

/// A forward of all replicas, as its backward needs it.
struct ReplicaPass {
  Shards shards;
  std::vector<FoundTensors> outputs;  ///< of each replica
  Join join;
};

/// What the replicas returned, as one batch.
struct JoinedOutputs {
  std::vector<at::Tensor> tensors;
  std::vector<bool> requires_grad;
};

/// Parts where the replicas lie, which end the graph behind the batch. Throws ValueError for tensors that do not fit
/// together.
Shards divide_batch(const FoundTensors& inputs, const DataParallelOptions& options,
                    const ReplicaPlaces& places);
/// Outside autograd. Throws ValueError for outputs that are not alike, and for a loss that is not one number.
JoinedOutputs join_outputs(const ReplicaPass& pass, int64_t dim, const ReplicaPlaces& places);
/// What is the given replica's of the gradient of joined output `t`.
at::Tensor divide_gradient(const ReplicaPass& pass, const at::Tensor& gradient, size_t replica, size_t t,
                           int64_t dim);
/// The gradients of the whole batch, in the order of `wanting`; undefined where no replica has one. Leaves none in the
/// parts.
std::vector<at::Tensor> take_input_gradients(const ReplicaPass& pass, int64_t dim,
                                             const ReplicaPlaces& places);

}  // namespace lockstep::detail
