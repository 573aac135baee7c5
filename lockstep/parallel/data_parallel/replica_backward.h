// One backward of all replicas: all of it happens, or nothing.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <memory>
#include <utility>
#include <vector>

#include "lockstep/parallel/bucket_slot_hook.h"
#include "lockstep/parallel/data_parallel/replica_batch.h"
#include "lockstep/parallel/data_parallel/replica_mirror.h"
#include "lockstep/parallel/data_parallel/replica_threads.h"

namespace lockstep::detail {

/// While it lives, hooks on the module's parameters are not called, nor DistributedDataParallel's on the accumulation of
/// their gradients: they want the sum, not replica 0's part.
class HooksAside {
 public:
  explicit HooksAside(const std::vector<at::Tensor>& parameters);
  ~HooksAside();
  HooksAside(const HooksAside&) = delete;
  HooksAside& operator=(const HooksAside&) = delete;
  /// What parameter p's hooks make of its gradient.
  at::Tensor call(size_t p, const at::Tensor& gradient) const;

 private:
  const std::vector<at::Tensor>& parameters_;
  std::vector<std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>> aside_{};
  std::vector<BucketSlotHook*> for_sums_{};
};

/// A backward through the replicas' graphs. Unless commit() was called its destructor leaves all gradients as they were
/// before, so that the next one begins anew. Without gradient mode. One thread at a time.
class ReplicaBackward {
 public:
  /// Puts the module's gradients aside, which are not to be added once for each replica, and its hooks. `dim` counts
  /// samples. All must outlive it.
  ReplicaBackward(const ReplicaMirror& mirror, ReplicaThreads& threads, const ReplicaPass& pass, int64_t dim);
  ~ReplicaBackward();
  ReplicaBackward(const ReplicaBackward&) = delete;
  ReplicaBackward& operator=(const ReplicaBackward&) = delete;

  /// Each replica's backward, given the gradients of the joined outputs. Blocks. Throws ReplicaError for what a
  /// replica's throws.
  void run(const std::vector<at::Tensor>& gradients, bool keep_graph);
  /// Leaves the sum over the replicas in the module's gradients and nothing in the others'. Throws what a hook on a
  /// parameter throws.
  void add_up();
  /// Does so where an engine is to accumulate the sums: the module's gradients are what they were, and these are the
  /// sums of `parameters`, undefined where no replica has one.
  std::vector<at::Tensor> take_sums(const std::vector<size_t>& parameters);
  /// Nothing is undone any more. Without add_up() the module's gradients are what they were. Returns the gradients of
  /// the batch.
  std::vector<at::Tensor> commit();

 private:
  void take_held();
  void restore_held();
  void undo();
  void add_outputs(size_t replica, const std::vector<at::Tensor>& gradients,
                   torch::autograd::variable_list& outputs, torch::autograd::variable_list& theirs) const;
  void add_buckets();
  at::Tensor find_sum(size_t parameter) const;
  void settle(size_t parameter);

  const ReplicaMirror& mirror_;
  ReplicaThreads& threads_;
  const ReplicaPass& pass_;
  int64_t dim_;
  std::vector<at::Tensor> held_;  // by parameter: what the module's gradients held
  HooksAside hooks_;
  bool has_sums_ = false, is_committed_ = false;
};

}  // namespace lockstep::detail
