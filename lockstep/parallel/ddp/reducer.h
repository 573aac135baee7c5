// Averages gradients over the ranks while backward runs.
//
// A hook on each parameter's gradient accumulation marks it ready, in its bucket (gradient_buckets.h); a bucket whose
// gradients are all ready leaves (bucket_reduction.h), in plan order, from inside the hook and without blocking; the
// end of backward waits for all of them, and settles what did not come (missing_gradients.h).
//
// A *pass* is one such round (pass.h). It begins when a backward pass reaches an output of a synchronised
// forward (or one of its parameters, for a forward without outputs) and ends with that backward pass. If an exception
// cuts it short, what is left of it is started at once, with zeros, so that the peers can end it without this rank;
// recover() ends it here.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/ddp/bucket_reduction.h"
#include "lockstep/parallel/ddp/gradient_buckets.h"
#include "lockstep/parallel/ddp/missing_gradients.h"
#include "lockstep/parallel/ddp/pass.h"
#include "lockstep/parallel/ddp/pass_statistics.h"
#include "lockstep/parallel/ddp/ready_order.h"
#include "lockstep/parallel/hooks/comm_hook.h"

namespace lockstep {

/// Used by DistributedDataParallel: the order in time of a pass, from the first gradient to the averages. One thread at
/// a time: the one that runs forward and backward.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  /// `parameters`: every parameter once, in the same order on all ranks. Those with requires_grad get places
  /// in buckets, which are allocated here. `group`: for this reducer alone. Made in the same order on all
  /// ranks.
  static std::shared_ptr<Reducer> create(std::vector<NamedTensor> parameters, ProcessGroup group,
                                         ReducerOptions options);
  ~Reducer();

  /// Ends a pass that an exception, in forward or in backward, cut short. Blocks until the peers are at the
  /// end of their backward; does nothing if there is no such pass.
  void recover();
  /// Before a synchronised forward: takes in parameters that were frozen, freed or loaded since, and lays the
  /// buckets out anew in the order in which gradients became ready, once. Blocks if parameters were frozen
  /// or freed. Throws Error naming the first parameter whose requires_grad differs between ranks.
  void prepare();
  /// A backward pass through `outputs` of a synchronised forward averages gradients.
  void arm(const std::vector<at::Tensor>& outputs);
  /// Gradients that follow, of a forward that is not synchronised, accumulate on this rank alone.
  void disarm() { pass_.take(PassEvent::local_forward); }
  /// The forward ended in an exception: this rank has no gradients for the pass that the others may be in.
  void fail_forward() { pass_.take(PassEvent::failed_forward); }

  /// Called at the end of each pass, before its buckets leave; returns by what the sum of the gradients is to
  /// be divided. While it is set, all buckets leave at the end of backward.
  void set_join_hook(std::function<int()> hook) { join_hook_ = std::move(hook); }
  /// Called when a pass begins.
  void set_begin_hook(std::function<void()> hook) { begin_hook_ = std::move(hook); }
  /// Takes part in a pass of the other ranks with zeros; `divisor` as above.
  void shadow_pass(int divisor);

  /// From here on gradients are averaged over `count` logical ranks, of which a process may have several
  /// (logical_ranks.h), in the order of shm::reduce on any backend. Before the first pass.
  void average_over_logical_ranks(int count);
  /// A logical rank's gradients are complete, outside a pass: takes them out of the parameters, for the sum of
  /// the pass to come. Throws Error naming the parameters that have none, if none may be missing.
  void keep_gradients();
  /// Forgets the gradients that were kept and those that the parameters have.
  void forget_gradients();
  /// A pass outside a backward: averages the gradients that the parameters have, and those that were kept. Called
  /// by all ranks; blocks. Throws what a backward's end throws.
  void average_gradients();

  /// `hook` takes the place of averaging, in every bucket; sparse gradients are averaged as ever. On all
  /// ranks, before the first pass. Throws Error for a second hook and after a pass.
  void register_comm_hook(CommHook hook);

  const GradientBuckets& buckets() const { return buckets_; }
  /// As of the last layout or the first pass.
  ReadyOrder& order() { return order_; }
  const PassStatistics& statistics() const { return statistics_; }

 private:
  class ParameterHook;
  class OutputHook;
  class Backward;

  Reducer(std::vector<NamedTensor> parameters, ProcessGroup group, ReducerOptions options);

  void hook_output(const at::Tensor& output);
  void on_output();
  void on_gradient(size_t parameter);
  void begin();
  void begin_round();
  static void end_all(int graph_task);
  void end(int divisor);
  void finish();
  void backward_is_gone(std::thread::id thread);
  void start_what_is_left();

  ProcessGroup group_;
  bool allows_missing_;
  uint64_t construction_order_;
  GradientBuckets buckets_;
  ReadyOrder order_;
  BucketReduction reduction_;
  MissingGradients missing_;
  PassStatistics statistics_;
  Pass pass_;
  std::vector<at::Tensor> held_sparse_;  // by parameter: of a backward that an exception ended, for the peers
  std::function<int()> join_hook_;
  std::function<void()> begin_hook_;
  int logical_ranks_ = 0;  // 0: a rank is a process
};

}  // namespace lockstep
