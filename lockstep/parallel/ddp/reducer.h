// Averages gradients over the ranks while backward runs.
//
// A hook on each parameter's gradient accumulation marks it ready, in its bucket (gradient_buckets.h); a bucket whose
// gradients are all ready leaves (bucket_reduction.h), in plan order, from inside the hook and without blocking; the
// end of backward waits for all of them, agrees with the other ranks that all is well, and settles what did not come
// (missing_gradients.h).
//
// A *pass* is one such round (pass.h). It begins when a backward pass reaches an output of a synchronized
// forward (or one of its parameters, for a forward without outputs) and ends with that backward pass. If an exception
// cuts it short, or keeps it from beginning, what is left of it is started at once, with zeros, so that the peers can end
// it without this rank; recover() ends it here. Inside a step (lockstep/step/step.h) the step fails instead, and nothing
// is ended: all goes back to what it was.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/step_members.h"
#include "lockstep/parallel/ddp/armed_forward.h"
#include "lockstep/parallel/ddp/bare_backwards.h"
#include "lockstep/parallel/ddp/bucket_reduction.h"
#include "lockstep/parallel/ddp/gradient_buckets.h"
#include "lockstep/parallel/ddp/missing_gradients.h"
#include "lockstep/parallel/ddp/pass.h"
#include "lockstep/parallel/ddp/pass_statistics.h"
#include "lockstep/parallel/ddp/ready_order.h"
#include "lockstep/parallel/ddp/weight_writes.h"
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

  /// Ends the passes that exceptions have cut short, of this reducer and of all others whose forwards run in this thread,
  /// in the order of construction, in which the peers end theirs. Blocks until the peers are at the end of their backward;
  /// does nothing if there is no such pass. In a step that has failed: throws StepFailedError.
  void recover();
  /// Before a synchronized forward: takes in parameters that were frozen, freed or loaded since, and lays the
  /// buckets out anew in the order in which gradients became ready, once. Blocks if parameters were frozen
  /// or freed. Throws Error naming the first parameter whose requires_grad differs between ranks.
  void prepare();
  /// A backward pass through `outputs` of a synchronized forward averages gradients.
  void arm(const std::vector<at::Tensor>& outputs);
  /// Gradients that follow, of a forward that is not synchronized, accumulate on this rank alone.
  void disarm();
  /// What the program has added to the module since it was wrapped, for an error; empty: nothing. Every pass ends in that
  /// error on all ranks. Before prepare().
  void refuse(std::string additions) { additions_ = std::move(additions); }
  /// What refuse() was told, and parameters that have another dtype or shape since prepare().
  const std::string& changes() const { return missing_.changes(); }
  /// Is a backward under way in this thread that averages?
  bool is_in_pass() const { return pass_.averages(); }
  /// An exception ended the forward, or what came after it and before a backward: this rank has no gradients for the
  /// pass that the others may be in, nor for those of other forwards in this thread whose backward has not begun. Where
  /// nothing in it blocks, the peers can end that pass from now on. `place`: such as "in the forward of "; `cause`: for
  /// a step's error, may be null.
  void fail_forward(const char* place, const std::exception_ptr& cause);

  /// What the wrapper wants to be asked.
  struct Callbacks {
    /// At the end of each pass, before its buckets leave; returns by what the sum of the gradients is to be divided.
    /// While it is set, all buckets leave at the end of backward.
    std::function<int()> join;
    /// When a pass begins.
    std::function<void()> begin;
  };
  Callbacks callbacks;
  /// What a step has written.
  detail::WeightWrites weight_writes{buckets_};
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
  class StepPart;

  Reducer(std::vector<NamedTensor> parameters, ProcessGroup group, ReducerOptions options);

  void on_output(ArmedForward& forward);
  void on_gradient(size_t parameter);
  void begin();
  void begin_round();
  static void end_all(int graph_task);
  void end();
  void finish();
  void fail_end();
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
  std::string additions_;
  std::string name_;          // of the module, for errors
  std::thread::id thread_{};  // of the last synchronized forward
  int failures_ = 0;          // here: outputs of forwards before the last one are of no use
  int logical_ranks_ = 0;     // 0: a rank is a process
  detail::BareBackwards bare_;
  std::unique_ptr<detail::StepMember> in_step_;
};

}  // namespace lockstep
