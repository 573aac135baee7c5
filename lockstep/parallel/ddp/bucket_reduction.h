// What one bucket does between its leaving and its return: the all-reduce, or what a communication hook makes of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/ddp/gradient_buckets.h"
#include "lockstep/parallel/ddp/pass.h"
#include "lockstep/parallel/hooks/comm_hook.h"

namespace lockstep {

/// The all-reduce of `group`'s backend that adds in the order of shm::reduce.
AllReduceAlgorithm tree_algorithm(const ProcessGroup& group);

/// Buckets leave in plan order, each once all of its gradients are there, and come back with the average of all ranks,
/// or with what the hook says. The order of operations is the same on all ranks. One thread at a time.
class BucketReduction {
 public:
  BucketReduction(ProcessGroup group, std::optional<WireDtype> wire_dtype)
      : group_(std::move(group)), wire_dtype_(wire_dtype) {}

  /// `hook` takes the place of averaging in every bucket.
  void set_hook(CommHook hook) { hook_ = std::move(hook); }
  bool has_hook() const { return hook_ != nullptr; }
  /// Sums are those of shm::reduce on any backend.
  void add_in_tree_order() { algorithm_ = tree_algorithm(group_); }

  /// None of `buckets` has left.
  void begin_pass(const GradientBuckets& buckets);
  /// Lets the buckets leave that are next in plan order and wait for nothing. Does not block. In a pass that an
  /// exception has cut short here, what the hook throws is nobody's concern.
  void start_ready(GradientBuckets& buckets, Pass& pass);
  /// Blocks until all buckets are back, each with the average in its own memory. Throws what an operation or the hook
  /// throws.
  void wait(const GradientBuckets& buckets, const Pass& pass);
  /// Waits for what is in flight, whatever comes of it: operations that go on would write into the next pass's
  /// gradients.
  void abandon();
  /// Forgets what is in flight: it never ends.
  void drop() { flights_.clear(); }

 private:
  struct Flight {
    std::shared_ptr<Work> work;
    at::Tensor wide;  // what is reduced in place of the bucket, in more precision
    // These are set instead of `work` when a communication hook is registered.
    std::unique_ptr<GradBucket> grad_bucket;
    std::unique_ptr<Future> future;
    bool future_is_complete = false;
  };

  void start_average(const at::Tensor& flat, Flight& flight, const Pass& pass);
  void start_hook(const GradientBuckets& buckets, size_t bucket, int divisor);
  void wait_for_averages(const GradientBuckets& buckets, const Pass& pass);
  void wait_for_hooks(const GradientBuckets& buckets, const Pass& pass);
  static void take_result(const GradientBuckets::Bucket& bucket, size_t number, const at::Tensor& value);

  ProcessGroup group_;
  std::optional<WireDtype> wire_dtype_;
  CommHook hook_{};
  std::optional<AllReduceAlgorithm> algorithm_{};  // none: the group's
  std::vector<Flight> flights_{};                  // by bucket
  size_t left_ = 0;                                // how many have
};

}  // namespace lockstep
