// Averages gradients over the ranks while backward runs.
//
// Gradients live in flat buckets in shared memory: every parameter's .grad is a view of its bucket. A hook on
// each parameter's gradient accumulation marks it ready; a bucket whose gradients are all ready leaves, in
// plan order, from inside the hook and without blocking; the end of backward waits for all of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/bucket_plan.h"

namespace torch::autograd {
struct Node;
}

namespace lockstep {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

struct ReducerOptions {
  size_t first_bucket_bytes = size_t{1} << 20;
  size_t bucket_bytes = size_t{25} << 20;
  bool find_unused_parameters = false;
};

/// Used by DistributedDataParallel. One thread at a time: the one that runs forward and backward.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  /// `parameters`: those with requires_grad, in the same order on all ranks. Allocates the buckets.
  static std::shared_ptr<Reducer> create(std::vector<NamedTensor> parameters, ProcessGroup group,
                                         ReducerOptions options);
  ~Reducer();

  /// Prepares for the backward pass of a forward that produced `outputs`. Until then hooks do nothing.
  void arm(const std::vector<at::Tensor>& outputs);
  /// The next backward pass leaves gradients alone: they accumulate on each rank.
  void disarm();

  const BucketPlan& plan() const { return plan_; }

 private:
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    at::Tensor view;  // of its bucket, in the parameter's own strides
    size_t bucket = 0;
    bool ready = false;
    c10::intrusive_ptr<torch::autograd::Node> accumulator;
    uintptr_t hook = 0;
  };
  struct Bucket {
    at::Tensor flat;     // 1-d, gradients at 64-byte offsets
    at::Tensor missing;  // one element behind the gradients of the last bucket; undefined in the others
    size_t pending = 0;  // gradients that are not ready
    std::shared_ptr<Work> work;
  };

  Reducer(ProcessGroup group, ReducerOptions options);
  void build(std::vector<NamedTensor> parameters);
  void add_hooks();
  void on_backward_start();
  void on_gradient(size_t parameter);
  void mark_ready(Parameter& parameter);
  void launch_ready_buckets();
  void on_backward_end();
  std::vector<at::Tensor> contribute_missing();
  void settle_missing(const std::vector<at::Tensor>& kept);
  [[noreturn]] void report_missing(const std::vector<std::string>& masks);

  ProcessGroup group_;
  ReducerOptions options_;
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  BucketPlan plan_;

  bool armed_ = false;
  bool end_is_queued_ = false;
  size_t next_bucket_ = 0;  // the next to leave
};

}  // namespace lockstep
