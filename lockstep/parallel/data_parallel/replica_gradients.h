// The gradients of the replicas: buckets, and their sum.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/autograd_node.h"
#include "lockstep/parallel/ddp/bucket_plan.h"

namespace torch::autograd {
struct Node;
}

namespace lockstep {

class BucketSlotHook;

/// One replica's gradients, in buckets that are laid out as DistributedDataParallel's. Between begin() and
/// end() every gradient that autograd accumulates in `parameters` lands in its place there, computed there
/// where the operation asks for a bucket_slot(). By one thread at a time.
class ReplicaGradients {
 public:
  ReplicaGradients(std::vector<at::Tensor> parameters, const BucketPlan& plan);
  ~ReplicaGradients();
  ReplicaGradients(const ReplicaGradients&) = delete;
  ReplicaGradients& operator=(const ReplicaGradients&) = delete;

  void begin();
  /// Clears the places of parameters that got no gradient. `ended_well`: false drops all gradients.
  enum class End : uint8_t { complete, given_up };
  void end(End how);
  bool has_gradient(size_t parameter) const { return slots_[parameter].is_used; }
  const std::vector<at::Tensor>& buckets() const { return buckets_; }
  const at::Tensor& view(size_t parameter) const { return slots_[parameter].view; }

 private:
  class Hook;
  struct Slot {
    at::Tensor parameter;
    at::Tensor view;
    bool is_used = false;  // in this backward
    NodePtr accumulator;
    uintptr_t hook = 0;
  };
  at::Tensor offer(size_t index, at::ScalarType dtype);
  void on_gradient(size_t index);

  std::vector<Slot> slots_;
  std::vector<at::Tensor> buckets_;
  bool is_active_ = false;
};

/// Hooks on the accumulation of the gradient of `parameter`, a trainable one, that are to see the sum over the replicas:
/// DistributedDataParallel's.
std::vector<BucketSlotHook*> hooks_for_sums(const at::Tensor& parameter);

/// The plan of DistributedDataParallel before it has seen a backward, for the parameters that require
/// gradients.
BucketPlan plan_replica_buckets(const std::vector<at::Tensor>& parameters);

/// Part `part` of `parts` of the work: the first replica's buckets become the sum over the first `replicas`,
/// in the order of sums of an all-reduce ((0+1)+(2+3))+..., with `averages` divided once by their number.
/// Different parts may run at the same time.
void reduce_buckets(const std::vector<std::unique_ptr<ReplicaGradients>>& replicas, int count, bool averages,
                    int part, int parts);

/// The sum of tensors in the same order.
at::Tensor tree_sum(const std::vector<at::Tensor>& tensors);

}  // namespace lockstep
