// Averages gradients over the ranks while backward runs.
//
// Gradients live in flat buckets in shared memory: every parameter's .grad is a view of its bucket. A hook on
// each parameter's gradient accumulation marks it ready; a bucket whose gradients are all ready leaves, in
// plan order, from inside the hook and without blocking; the end of backward waits for all of them.
//
// A *pass* is one such round (pass.h). It begins when a backward pass reaches an output of a synchronised
// forward (or one of its parameters, for a forward without outputs) and ends with that backward pass. Where
// an exception cuts it short, what is left of it is started at once, with zeros, so that the peers can end it
// without this rank; recover() ends it here.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/comm_hook.h"
#include "lockstep/parallel/pass/bucket_plan.h"
#include "lockstep/parallel/pass/pass.h"
#include "lockstep/parallel/pass/pass_report.h"
#include "lockstep/parallel/reducer/device_streams.h"
#include "lockstep/parallel/reducer/gradient_tree.h"

namespace torch::autograd {
struct Node;
}

namespace lockstep {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool has_sparse_gradient = false;
};

struct ReducerOptions {
  std::vector<size_t> bucket_caps{size_t{1} << 20, size_t{25} << 20};  // see plan_buckets
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = true;
  bool static_graph = false;
};

/// The all-reduce of `group`'s backend that adds in the order of shm::reduce.
AllReduceAlgorithm tree_algorithm(const ProcessGroup& group);

/// What the reducer has seen, for DistributedDataParallel::logging_data().
struct ReducerStatistics {
  /// Of a pass: until the last gradient; from the first bucket's leaving to the last one's return; what of
  /// that lay before the last gradient.
  struct Times {
    std::chrono::nanoseconds compute{}, comm{}, overlap{};
  };
  int64_t passes = 0, timed_passes = 0;
  Times last, sum;                    // of timed passes
  size_t unused_parameter_bytes = 0;  // of this rank, in the last pass
  bool has_rebuilt_buckets = false;
};

/// Used by DistributedDataParallel. One thread at a time: the one that runs forward and backward.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  /// `parameters`: every parameter once, in the same order on all ranks. Those with requires_grad get places
  /// in buckets, which are allocated here. `group`: for this reducer alone. Made in the same order on all
  /// ranks.
  static std::shared_ptr<Reducer> create(std::vector<NamedTensor> parameters, ProcessGroup group,
                                         ReducerOptions options);
  ~Reducer();

  /// Ends a pass that an exception, in forward or in backward, cut short. Blocks until the peers are at the
  /// end of their backward; does nothing where there is no such pass.
  void recover();
  /// Before a synchronised forward: takes in parameters that were frozen, freed or loaded since, and lays the
  /// buckets out anew in the order in which gradients became ready, once. Blocks where parameters were frozen
  /// or freed. Throws Error naming the first parameter whose requires_grad differs between ranks.
  void prepare();
  /// A backward pass through `outputs` of a synchronised forward averages gradients.
  void arm(const std::vector<at::Tensor>& outputs);
  /// Gradients that follow, of a forward that is not synchronised, accumulate on this rank alone.
  void disarm() { take(PassEvent::local_forward); }

  /// The forward ended in an exception: this rank has no gradients for the pass that the others may be in.
  void fail_forward() { take(PassEvent::failed_forward); }

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
  /// the pass to come. Throws Error naming the parameters that have none, where none may be missing.
  void keep_gradients();
  /// Forgets the gradients that were kept and those that the parameters have.
  void forget_gradients();
  /// Has any parameter a gradient?
  bool has_gradients() const;
  /// A pass outside a backward: averages the gradients that the parameters have, and those that were kept. Called
  /// by all ranks; blocks. Throws what a backward's end throws.
  void average_gradients();

  /// `hook` takes the place of averaging, in every bucket; sparse gradients are averaged as ever. On all
  /// ranks, before the first pass. Throws Error for a second hook and after a pass.
  void register_comm_hook(CommHook hook);

  const BucketPlan& plan() const { return plan_; }
  /// Names in the order in which gradients became ready, as of the last rebuild or the first pass. Waits for
  /// rank 0's, where that is under way.
  std::vector<std::string> ready_order();
  /// Do all ranks know that order, or will they by waiting for rank 0?
  bool has_agreed_order() const { return order_state_ != Order::own; }
  /// The next prepare() lays the buckets out in this order, the same on all ranks. Throws ValueError for a
  /// name that no parameter has.
  void load_ready_order(const std::vector<std::string>& names);
  const ReducerStatistics& statistics() const { return statistics_; }
  /// Is the next step among those that are timed? Reading the clock six times shows in a step of 0.1 ms.
  bool times_next_pass() const;
  /// Names of the trainable parameters that got no gradient on this rank in the last pass.
  std::vector<std::string> unused_parameters() const;

 private:
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    bool is_sparse = false;
    bool is_trainable = false;   // as of the plan: has a place in a bucket, or is sparse
    at::Tensor view;             // of its bucket, in the parameter's own strides
    void* small_slot = nullptr;  // where `view` lies, if it is dense, in main memory and small
    size_t bytes = 0;            // of `view`
    bool fits_slot = false;
    size_t bucket = 0;  // the last one for a sparse gradient, which waits for all of them
    bool is_ready = false;
    bool was_used = false;  // got a gradient since the last pass, in it or under no_sync()
    int gradients = 0;      // in this pass: more than one when a checkpoint runs its own backward
    int expected = 1;       // static_graph: gradients in the first pass
    at::Tensor held;        // sparse: of a backward that an exception ended, for the peers
    c10::intrusive_ptr<torch::autograd::Node> accumulator;
    uintptr_t hook = 0;
  };
  struct Bucket {
    at::Tensor flat;  // 1-d, gradients at 64-byte offsets
    // Of the last bucket: one element in main memory, behind the gradients where those lie there too.
    at::Tensor missing;
    size_t pending = 0;     // gradients that are not ready
    DeviceStreams streams;  // that gradients were written on
    std::shared_ptr<Work> work;
    at::Tensor wide;                     // what is reduced in place of `flat`, in more precision
    std::shared_ptr<Work> missing_work;  // where `missing` is not reduced with the gradients
    // Of a communication hook, in the place of `work`.
    std::unique_ptr<GradBucket> grad_bucket;
    std::unique_ptr<Future> future;
    bool future_is_complete = false;
  };
  enum class Order : uint8_t { own, sent, agreed, laid_out };  // agreed: it is rank 0's
  struct Pass {
    PassState state = PassState::idle;
    std::weak_ptr<const void> backward{};  // alive while that runs
    Role role = Role::active;
    bool leaves_at_end = false;  // no bucket leaves before the end
    bool is_timed = false;
    size_t next_bucket = 0;  // the next to leave
    int divisor = 0;         // 0: the size of the group, within which the reduction itself averages
    std::chrono::steady_clock::time_point start{}, comm_start{};
    int64_t traced_start = 0;  // for the timeline; 0: none is kept
    // Where a gradient is missing somewhere: what each rank has to say (pass_report.h).
    at::Tensor report{};
    std::vector<at::Tensor> reports{};
    std::shared_ptr<Work> report_work{};
  };

  Reducer(ProcessGroup group, ReducerOptions options);

  class ParameterHook;
  class OutputHook;
  class Backward;

  // Buckets and hooks (reducer_buckets.cpp).
  bool trainable_changed() const;
  void follow_accumulators();
  std::string changed_names() const;
  void take_trainable();
  std::vector<size_t> known_order() const;
  BucketPlan make_plan(const std::vector<size_t>& order) const;
  void lay_out(BucketPlan plan);
  void add_hook(size_t parameter);
  at::Tensor offer_slot(size_t parameter, at::ScalarType dtype);  // see bucket_slot()
  void remove_hook(Parameter& parameter);
  void add_kept(const Parameter& parameter);
  void send_order();
  void take_order();
  void lay_out_in_order();
  void verify_trainable() const;

  // A pass (reducer.cpp).
  /// Of an event that begins no pass.
  void take(PassEvent event) { pass_.state = next_state(pass_.state, event); }
  /// Whether `event` begins a pass, or belongs to the one under way.
  bool leads_to_pass(PassEvent event) const { return next_state(pass_.state, event) == PassState::open; }
  /// A backward whose end another thread has seen is torn, too.
  bool is_torn() const {
    return pass_.state == PassState::torn || (pass_.state == PassState::open && pass_.backward.expired());
  }
  void begin();
  void backward_is_gone(std::thread::id thread);
  void part_with_gradients();
  void start_what_is_left();
  void check_apart(const Reducer& other) const;
  static void end_all(int graph_task);
  void reset_pass();
  void hook_output(const at::Tensor& output);
  void on_output();
  void on_gradient(size_t parameter);
  static void copy_to_slot(const at::Tensor& gradient, const Parameter& parameter);
  void adopt(Parameter& parameter);
  void launch_ready_buckets();
  void all_reduce_missing(Bucket& bucket);
  void end(int divisor);
  void finish();
  void adopt_late();
  void abandon_buckets();
  void start_average(Bucket& bucket);
  void wait_for_buckets();
  void write_back(Parameter& parameter);
  std::chrono::steady_clock::time_point moment() const;
  void count_pass(std::chrono::steady_clock::time_point compute_end);

  // A communication hook (reducer_hook.cpp).
  void launch_hook(size_t bucket);
  void wait_for_hooks();

  // Gradients that did not come (reducer_missing.cpp).
  std::vector<at::Tensor> contribute_missing();
  void reduce_sparse();
  void start_report();
  bool settle(const std::vector<at::Tensor>& kept);
  void take_average(Parameter& parameter);
  void take_averages();
  void keep_or_take_averages(const PassVerdict& verdict, const std::vector<at::Tensor>& kept);
  void drop_gradients();
  std::vector<std::string> names() const;
  bool allows_missing() const { return options_.find_unused_parameters || options_.static_graph; }

  ProcessGroup group_;
  ReducerOptions options_;
  uint64_t construction_order_;
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  BucketPlan plan_;
  std::function<int()> join_hook_;
  std::function<void()> begin_hook_;
  CommHook comm_hook_;
  int logical_ranks_ = 0;  // 0: a rank is a process
  GradientTree kept_;      // of this process's logical ranks but the last

  Pass pass_;
  std::vector<size_t> order_;  // in which gradients became ready; empty until a pass has ended well
  Order order_state_ = Order::own;
  at::Tensor order_message_;  // rank 0's order on its way, padded
  std::shared_ptr<Work> order_work_;
  bool counts_are_known_ = false;  // static_graph: Parameter::expected
  ReducerStatistics statistics_;
};

}  // namespace lockstep
