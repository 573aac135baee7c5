#include "lockstep/parallel/reducer/reducer.h"

#include <ATen/ops/add.h>
#include <ATen/ops/sub.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/debug_level.h"
#include "lockstep/parallel/pass/open_passes.h"
#include "lockstep/timeline/timeline.h"
#include "lockstep/timeline/totals.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

bool is_in_slot(const at::Tensor& gradient, const at::Tensor& view) {
  return gradient.is_same(view) ||
         (gradient.is_alias_of(view) && gradient.const_data_ptr() == view.const_data_ptr() &&
          gradient.strides() == view.strides() && gradient.scalar_type() == view.scalar_type());
}

/// One element of any dtype: a sum of zeros has no bit set.
bool is_zero(const at::Tensor& element) {
  const auto* bytes = static_cast<const unsigned char*>(element.const_data_ptr());
  return std::all_of(bytes, bytes + element.nbytes(), [](unsigned char byte) { return byte == 0; });
}

/// torch::autograd::grad() and backward(inputs) compute some gradients only: is one of `node`'s kind among
/// them?
bool will_execute(const torch::autograd::Node* node) {
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  if (wanted == nullptr || wanted->empty()) return true;
  const auto it = wanted->find(const_cast<torch::autograd::Node*>(node));
  return it != wanted->end() && it->second.needed_;
}

uint64_t next_order() {
  static std::atomic<uint64_t> count{0};
  return count.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

Reducer::Reducer(ProcessGroup group, ReducerOptions options)
    : group_(std::move(group)), options_(std::move(options)), construction_order_(next_order()) {}

std::shared_ptr<Reducer> Reducer::create(std::vector<NamedTensor> parameters, ProcessGroup group,
                                         ReducerOptions options) {
  std::shared_ptr<Reducer> reducer(new Reducer(std::move(group), std::move(options)));
  for (NamedTensor& named : parameters) {
    Parameter parameter;
    parameter.name = std::move(named.name);
    parameter.tensor = std::move(named.tensor);
    parameter.is_sparse = named.has_sparse_gradient;
    reducer->parameters_.push_back(std::move(parameter));
  }
  reducer->take_trainable();
  reducer->lay_out(reducer->make_plan(reducer->known_order()));
  return reducer;
}

Reducer::~Reducer() {
  OpenPasses::of_process().leave(this);
  for (Parameter& parameter : parameters_) remove_hook(parameter);
}

/// On an output of a synchronised forward. The graph keeps the reducer: a wrapper that goes away after
/// forward averages all the same.
class Reducer::OutputHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit OutputHook(std::shared_ptr<Reducer> reducer) : reducer_(std::move(reducer)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    reducer_->on_output();
    return gradients;
  }

 private:
  std::shared_ptr<Reducer> reducer_;
};

/// Belongs to a backward pass in the engine: it goes with that, and also when an exception ends that.
class Reducer::Backward {
 public:
  explicit Backward(std::shared_ptr<Reducer> reducer) : reducer_(std::move(reducer)) {}
  Backward(const Backward&) = delete;
  ~Backward() { reducer_->backward_is_gone(thread_); }

 private:
  std::shared_ptr<Reducer> reducer_;
  std::thread::id thread_ = std::this_thread::get_id();
};

void Reducer::arm(const std::vector<at::Tensor>& outputs) {
  take(PassEvent::synchronised_forward);
  // A rank on which no parameter gets a gradient takes part too: backward reaches an output first.
  for (const at::Tensor& output : outputs) {
    // A hook on a leaf (an input or a parameter handed back) would stay for good.
    if (output.defined() && output.requires_grad() && !output.is_leaf()) hook_output(output);
  }
}

void Reducer::hook_output(const at::Tensor& output) {
  // What Tensor::register_hook() ends in, without its list of functions.
  output.grad_fn()->add_tensor_pre_hook(std::make_unique<OutputHook>(shared_from_this()));
}

void Reducer::on_output() {
  if (pass_.state == PassState::open && !is_torn()) return;
  const bool any = std::any_of(parameters_.begin(), parameters_.end(), [](const Parameter& parameter) {
    return parameter.accumulator && will_execute(parameter.accumulator.get());
  });
  if (any) begin();
}

void Reducer::begin() {
  recover();
  if (begin_hook_) begin_hook_();
  const auto backward = std::make_shared<Backward>(shared_from_this());
  const int graph_task = torch::autograd::get_current_graph_task_id();
  OpenPasses::of_process().enter({this, construction_order_, graph_task, backward},
                                 [this](const Reducer& other) { check_apart(other); });
  reset_pass();
  pass_.state = PassState::open;
  pass_.backward = backward;
  pass_.leaves_at_end = join_hook_ != nullptr || (options_.static_graph && !counts_are_known_);
  pass_.is_timed = times_next_pass();
  pass_.traced_start = timeline::is_on() ? timeline::now() : 0;
  pass_.start = moment();
  torch::autograd::Engine::get_default_engine().queue_callback(
      [backward, graph_task] { end_all(graph_task); });
}

/// The engine has dropped a backward pass.
void Reducer::backward_is_gone(std::thread::id thread) {
  const bool is_this_pass = pass_.state == PassState::open && pass_.backward.expired();
  if (!is_this_pass || thread != std::this_thread::get_id()) return;
  take(PassEvent::exception);
  part_with_gradients();
  try {
    start_what_is_left();
  } catch (const std::exception& error) {  // recover() meets it again
    log::debug(std::string("DistributedDataParallel: a pass that an exception cut short: ") + error.what());
  }
}

/// Every bucket has left with this rank's gradients, and the averages come back into its memory whenever they
/// come: the program, which may zero its gradients before that, has none from here on.
void Reducer::part_with_gradients() {
  if (pass_.next_bucket < buckets_.size()) return;  // the pass fails: nobody's gradients are of use
  for (Parameter& parameter : parameters_) {
    if (!parameter.is_trainable || !parameter.is_ready) continue;
    at::Tensor gradient = std::exchange(parameter.tensor.mutable_grad(), {});
    if (parameter.is_sparse) parameter.held = std::move(gradient);
  }
}

/// The peers' passes wait for this rank's part, which is zeros from here on. Started, they can end without
/// this rank; it need not come back before it does something else. Only where nothing in it blocks.
void Reducer::start_what_is_left() {
  constexpr size_t kMostInFlight = 32;
  const bool blocks = comm_hook_ || join_hook_ || buckets_.size() > kMostInFlight ||
                      std::any_of(parameters_.begin(), parameters_.end(), [](const Parameter& parameter) {
                        return parameter.is_trainable && (parameter.is_sparse || !parameter.tensor.is_cpu());
                      });
  if (blocks || pass_.next_bucket == buckets_.size()) return;
  const at::NoGradGuard no_grad;
  pass_.role = Role::failed;
  contribute_missing();
  launch_ready_buckets();
  start_report();
}

/// Two wrappers of the same parameters in one backward would read each other's half-reduced buckets.
void Reducer::check_apart(const Reducer& other) const {
  std::unordered_set<const at::TensorImpl*> theirs;
  for (const Parameter& parameter : other.parameters_) {
    if (parameter.is_trainable) theirs.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  for (const Parameter& parameter : parameters_) {
    if (!parameter.is_trainable || !theirs.count(parameter.tensor.unsafeGetTensorImpl())) continue;
    throw Error("DistributedDataParallel: parameter " + parameter.name +
                " belongs to two wrapped modules that take part in one backward pass; wrap only the outer "
                "module, or name the parameter in parameters_and_buffers_to_ignore of one of them");
  }
}

/// The first callback at the end of a backward ends all its passes, in the same order on all ranks; for the
/// others nothing is left. An error of one pass, which all ranks have, keeps none of the others from ending.
void Reducer::end_all(int graph_task) {
  std::exception_ptr first_error;
  while (const Reducer* next = OpenPasses::of_process().take_first(graph_task)) {
    auto* const reducer = const_cast<Reducer*>(next);  // kept alive by its own callback
    try {
      reducer->end(reducer->join_hook_ ? reducer->join_hook_() : 0);
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
    if (reducer->pass_.traced_start == 0) continue;
    timeline::record(timeline::Kind::backward, "backward", reducer->pass_.traced_start, timeline::now());
  }
  if (first_error) std::rethrow_exception(first_error);
}

void Reducer::reset_pass() {
  for (Bucket& bucket : buckets_) {
    bucket.pending = 0;
    bucket.work.reset();
    bucket.wide.reset();
    bucket.missing_work.reset();
    bucket.future.reset();
    bucket.future_is_complete = false;
  }
  for (Parameter& parameter : parameters_) {
    parameter.is_ready = false;
    parameter.gradients = 0;
    parameter.held.reset();
    if (parameter.is_trainable) ++buckets_[parameter.bucket].pending;
  }
  pass_ = Pass{.state = pass_.state, .divisor = logical_ranks_};
  if (order_state_ == Order::own) order_.clear();
}

void Reducer::on_gradient(size_t index) {
  Parameter& parameter = parameters_[index];
  parameter.was_used = true;
  if (!leads_to_pass(PassEvent::gradient) || is_torn()) return;
  if (pass_.state != PassState::open) begin();
  ++parameter.gradients;
  if (parameter.is_ready) {
    throw Error("DistributedDataParallel: parameter " + parameter.name + " got gradient number " +
                std::to_string(parameter.gradients) + " in one backward pass" +
                (options_.static_graph
                     ? ", more than in the first one: the graph is not the same in every step, so leave "
                       "static_graph out"
                     : ", as activation checkpoints with a backward of their own do; set static_graph if the "
                       "graph is the same in every step"));
  }
  if (order_state_ == Order::own) {
    if (parameter.gradients > 1) std::erase(order_, index);
    order_.push_back(index);
  }
  if (pass_.leaves_at_end || (options_.static_graph && parameter.gradients < parameter.expected)) return;
  adopt(parameter);
  launch_ready_buckets();
}

/// copy_, whose way through the dispatcher costs more than a small copy of what lies in memory as it is
/// meant.
void Reducer::copy_to_slot(const at::Tensor& gradient, const Parameter& parameter) {
  const at::Tensor& view = parameter.view;
  if (parameter.small_slot != nullptr && gradient.is_cpu() && !gradient.is_conj() && !gradient.is_neg() &&
      gradient.strides() == view.strides() && gradient.scalar_type() == view.scalar_type()) {
    std::memcpy(parameter.small_slot, gradient.const_data_ptr(), parameter.bytes);
    return;
  }
  const at::NoGradGuard no_grad;
  view.copy_(gradient);
}

/// Brings a complete gradient to its place in the bucket.
void Reducer::adopt(Parameter& parameter) {
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  if (gradient.defined() && gradient.is_sparse() != parameter.is_sparse) {
    throw ValueError(
        "DistributedDataParallel: parameter " + parameter.name +
        (parameter.is_sparse
             ? " has a dense gradient, but its embedding has sparse=true; a weight that another layer uses "
               "too needs sparse=false"
             : " has a sparse gradient; only those of torch::nn::Embedding and EmbeddingBag are averaged, so "
               "make its layer produce dense ones (sparse=false)"));
  }
  if (!parameter.is_sparse) {
    if (!gradient.defined()) {  // used, but the operation's backward hands out none: nothing to add
      const at::NoGradGuard no_grad;
      parameter.view.zero_();
      gradient = options_.gradient_as_bucket_view ? parameter.view : parameter.view.clone();
    }
    // After zero_grad(set_to_none) autograd leaves a tensor of its own: one copy brings it there, unless it
    // was computed there (bucket_slot()).
    if (!is_in_slot(gradient, parameter.view)) copy_to_slot(gradient, parameter);
    add_kept(parameter);
    // With create_graph the gradient is part of a graph, which must stay.
    if (options_.gradient_as_bucket_view && !gradient.requires_grad()) gradient = parameter.view;
  }
  Bucket& bucket = buckets_[parameter.bucket];
  bucket.streams.note(bucket.flat.device());
  if (--bucket.pending == 0 && timeline::is_on()) {
    const int64_t moment = timeline::now();
    timeline::record(timeline::Kind::ready, "ready", moment, moment,
                     static_cast<int64_t>(bucket.flat.nbytes()), static_cast<int32_t>(parameter.bucket));
  }
  parameter.is_ready = true;
}

void Reducer::launch_ready_buckets() {
  bool launched = false;
  while (pass_.next_bucket < buckets_.size() && buckets_[pass_.next_bucket].pending == 0) {
    Bucket& bucket = buckets_[pass_.next_bucket];
    if (pass_.next_bucket == 0) pass_.comm_start = moment();
    if (bucket.missing.defined()) {
      // The last bucket leaves when every gradient is accounted for: the right place to say what is missing.
      const bool all_here = pass_.role == Role::joined ||
                            std::all_of(parameters_.begin(), parameters_.end(),
                                        [](const Parameter& p) { return !p.is_trainable || p.is_ready; });
      if (all_here) {
        std::memset(bucket.missing.mutable_data_ptr(), 0, bucket.missing.nbytes());
      } else {
        bucket.missing.fill_(1);
      }
    }
    const timeline::BucketScope scope(pass_.next_bucket);
    bucket.streams.join(bucket.flat.device());
    if (comm_hook_) {
      launch_hook(pass_.next_bucket);
    } else {
      start_average(bucket);
      if (bucket.missing.defined() && !bucket.flat.is_cpu()) all_reduce_missing(bucket);
    }
    ++pass_.next_bucket;
    launched = true;
  }
  if (!launched && pass_.next_bucket > 0) group_.progress();
}

/// Rounded once, whatever the divisor: in half precision a quotient of a sum would be rounded twice.
void Reducer::start_average(Bucket& bucket) {
  const bool by_size = pass_.divisor == 0 || pass_.divisor == group_.size();
  const at::ScalarType dtype = bucket.flat.scalar_type();
  if (!by_size && (dtype == at::kBFloat16 || dtype == at::kHalf)) bucket.wide = bucket.flat.to(at::kFloat);
  AllReduceOptions how{.op = by_size ? ReduceOp::AVG : ReduceOp::SUM};
  if (logical_ranks_ > 0) how.algorithm = tree_algorithm(group_);
  bucket.work = group_.all_reduce_async(bucket.wide.defined() ? bucket.wide : bucket.flat, how);
}

/// Where the gradients are not reduced in main memory, or by a hook: nobody waits for a device to learn that
/// nothing is missing.
void Reducer::all_reduce_missing(Bucket& bucket) {
  bucket.missing_work = group_.all_reduce_async(bucket.missing);
}

/// Ends the pass. `divisor`: join()'s; 0 outside.
void Reducer::end(int divisor) {
  if (divisor != 0) pass_.divisor = divisor;
  OpenPasses::of_process().leave(this);
  const bool was_cut_short = pass_.state == PassState::torn || pass_.state == PassState::absent;
  take(was_cut_short ? PassEvent::recovery : PassEvent::end);
  try {
    finish();
  } catch (const CommError&) {
    throw;  // the group is broken: nothing goes on
  } catch (...) {
    abandon_buckets();
    // A rank's own order, which nobody has agreed on: the next layout must be the same on all ranks.
    if (order_state_ == Order::own) order_.clear();
    throw;
  }
}

/// Operations that go on would write into the next pass's gradients.
void Reducer::abandon_buckets() {
  const auto quietly = [](const auto& wait) {
    try {
      wait();
    } catch (...) {  // the first error is the one to tell
    }
  };
  for (Bucket& bucket : buckets_) {
    if (bucket.future) quietly([&] { bucket.future->abandon(); });
    if (bucket.work) quietly([&] { bucket.work->wait(); });
    if (bucket.missing_work) quietly([&] { bucket.missing_work->wait(); });
    bucket.future.reset();
    bucket.work.reset();
    bucket.missing_work.reset();
  }
}

/// Gradients that were to leave at the end of backward.
void Reducer::adopt_late() {
  for (Parameter& parameter : parameters_) {
    if (parameter.is_trainable && parameter.gradients > 0 && !parameter.is_ready) adopt(parameter);
  }
}

void Reducer::finish() {
  const at::NoGradGuard no_grad;
  const Clock::time_point compute_end = moment();
  if (pass_.role == Role::active && pass_.leaves_at_end) adopt_late();
  const std::vector<at::Tensor> kept = contribute_missing();
  launch_ready_buckets();
  reduce_sparse();
  {
    const timeline::Counted counted(timeline::Kind::wait);
    if (comm_hook_) {
      wait_for_hooks();
    } else {
      wait_for_buckets();
    }
  }
  const bool complete = buckets_.empty() || is_zero(buckets_.back().missing);
  if (!complete && !settle(kept)) return;
  if (order_state_ == Order::own) send_order();
  if (pass_.role == Role::joined) {
    if (complete) take_averages();
    return;
  }
  count_pass(compute_end);
  statistics_.unused_parameter_bytes = 0;
  for (Parameter& parameter : parameters_) {
    if (!parameter.is_trainable) continue;
    if (parameter.is_ready && !parameter.is_sparse) write_back(parameter);
    if (!parameter.is_ready) statistics_.unused_parameter_bytes += parameter.tensor.nbytes();
    if (options_.static_graph && !counts_are_known_) parameter.expected = std::max(parameter.gradients, 1);
    parameter.was_used = false;
  }
  counts_are_known_ = true;
}

/// As often as Python's DDP: the first steps and then each hundredth; all of them where somebody reads them.
bool Reducer::times_next_pass() const {
  constexpr int64_t kFirst = 10, kSampleRate = 100;
  const int64_t pass = statistics_.passes + 1;
  return pass <= kFirst || pass % kSampleRate == 0 || debug_level() >= DebugLevel::INFO;
}

Clock::time_point Reducer::moment() const { return pass_.is_timed ? Clock::now() : Clock::time_point{}; }

void Reducer::count_pass(Clock::time_point compute_end) {
  ++statistics_.passes;
  if (!pass_.is_timed) return;
  ++statistics_.timed_passes;
  const ReducerStatistics::Times times{
      .compute = compute_end - pass_.start,
      .comm = Clock::now() - pass_.comm_start,
      .overlap = std::max(compute_end - pass_.comm_start, Clock::duration::zero())};
  statistics_.last = times;
  statistics_.sum.compute += times.compute;
  statistics_.sum.comm += times.comm;
  statistics_.sum.overlap += times.overlap;
}

void Reducer::wait_for_buckets() {
  const bool divides = pass_.divisor != 0 && pass_.divisor != group_.size();
  for (Bucket& bucket : buckets_) {
    bucket.work->wait();
    bucket.work.reset();
    if (bucket.missing_work) bucket.missing_work->wait();
    if (!divides) continue;
    if (bucket.wide.defined()) {
      bucket.flat.copy_(std::exchange(bucket.wide, {}).div_(pass_.divisor));
    } else {
      bucket.flat.div_(pass_.divisor);
    }
  }
}

/// Where the gradient is a tensor beside its bucket, it gets the average.
void Reducer::write_back(Parameter& parameter) {
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  // None: of a pass that an exception cut short, whose gradients the program has dropped since.
  if (!gradient.defined() || is_in_slot(gradient, parameter.view)) return;
  if (!gradient.requires_grad()) {
    gradient.copy_(parameter.view);
    return;
  }
  // The average as a value, this rank's gradient as its derivative: a second backward pass averages the
  // derivatives, and the average of the derivatives is the derivative of the average.
  const at::AutoGradMode with_graph(true);
  gradient = at::add(parameter.view.clone(), at::sub(gradient, gradient.detach()));
  hook_output(gradient);  // a backward pass through it averages
}

void Reducer::shadow_pass(int divisor) {
  const at::NoGradGuard no_grad;
  reset_pass();
  pass_.role = Role::joined;
  end(divisor);
}

}  // namespace lockstep
