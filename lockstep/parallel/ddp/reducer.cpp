#include "lockstep/parallel/ddp/reducer.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <string>
#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/parallel/bucket_slot_hook.h"
#include "lockstep/parallel/ddp/open_passes.h"
#include "lockstep/parallel/ddp/sparse_gradients.h"
#include "lockstep/parallel/ddp/trainable_check.h"
#include "lockstep/timeline/timeline.h"

namespace lockstep {
namespace {

using Parameter = GradientBuckets::Parameter;

uint64_t next_order() {
  static std::atomic<uint64_t> count{0};
  return count.fetch_add(1, std::memory_order_relaxed);
}

std::vector<std::string> names_of(const std::vector<NamedTensor>& parameters) {
  std::vector<std::string> names;
  for (const NamedTensor& parameter : parameters) names.push_back(parameter.name);
  return names;
}

/// Two wrappers of the same parameters in one backward would read each other's half-reduced buckets.
void check_apart(const Reducer& reducer, const Reducer& other) {
  std::unordered_set<const at::TensorImpl*> theirs;
  for (const Parameter& parameter : other.buckets().parameters()) {
    if (parameter.is_trainable) theirs.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  for (const Parameter& parameter : reducer.buckets().parameters()) {
    if (!parameter.is_trainable || !theirs.count(parameter.tensor.unsafeGetTensorImpl())) continue;
    throw Error("DistributedDataParallel: parameter " + parameter.name +
                " belongs to two wrapped modules that take part in one backward pass; wrap only the outer "
                "module, or name the parameter in parameters_and_buffers_to_ignore of one of them");
  }
}

/// Takes the gradients out of the parameters. Throws Error naming those that have none, unless `allows_missing`.
std::vector<at::Tensor> take_gradients(const std::vector<Parameter>& parameters, bool allows_missing) {
  std::vector<at::Tensor> gradients;
  std::vector<std::string> missing;
  for (const Parameter& parameter : parameters) {
    gradients.push_back(std::exchange(parameter.tensor.mutable_grad(), {}));
    if (!parameter.is_trainable) gradients.back().reset();
    // Autograd may hand out one piece of memory as the gradients of several parameters; sums are made in place.
    at::Tensor& gradient = gradients.back();
    if (gradient.defined() && !gradient.is_sparse() && gradient.storage().use_count() > 1)
      gradient = gradient.clone();
    if (parameter.is_trainable && !gradients.back().defined()) missing.push_back(parameter.name);
  }
  if (missing.empty() || allows_missing) return gradients;
  constexpr size_t kMost = 20;
  const size_t more = missing.size() > kMost ? missing.size() - kMost : 0;
  if (more > 0) missing.resize(kMost);
  throw Error(fmt::format(
      "DistributedDataParallel: no gradient for {}{}: these parameters took no part in the loss of a logical rank. Set "
      "find_unused_parameters if that is intended",
      fmt::join(missing, ", "), more > 0 ? fmt::format(" and {} more", more) : std::string()));
}

/// Every bucket has left with this rank's gradients, and the averages come back into its memory whenever they
/// come: the program, which may zero its gradients before that, has none from here on. Returns the sparse ones, by
/// parameter, which have not left.
std::vector<at::Tensor> part_with_gradients(const GradientBuckets& buckets) {
  std::vector<at::Tensor> sparse(buckets.parameters().size());
  for (size_t p = 0; p < sparse.size(); ++p) {
    const Parameter& parameter = buckets.parameters()[p];
    if (!parameter.is_trainable || !parameter.is_ready) continue;
    at::Tensor gradient = std::exchange(parameter.tensor.mutable_grad(), {});
    if (parameter.is_sparse) sparse[p] = std::move(gradient);
  }
  return sparse;
}

/// A rank that has joined holds the others' averages: it may have to step for its share of the parameters.
void take_averages(const GradientBuckets& buckets) {
  for (const Parameter& parameter : buckets.parameters()) {
    if (parameter.view.defined()) buckets.take_average(parameter);
  }
}

}  // namespace

/// On the accumulation of a parameter's gradient.
class Reducer::ParameterHook final : public BucketSlotHook {
 public:
  ParameterHook(std::weak_ptr<Reducer> reducer, size_t parameter)
      : reducer_(std::move(reducer)), parameter_(parameter) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& /*inputs*/) override {
    if (const auto reducer = reducer_.lock()) reducer->on_gradient(parameter_);
    return outputs;
  }
  at::Tensor slot(at::ScalarType dtype) const override {
    using enum GradientBuckets::SlotUse;
    const auto reducer = reducer_.lock();
    if (!reducer) return {};
    const bool averages = reducer->pass_.averages();
    // Logical ranks add in the same order in a pass and outside.
    if (!averages && reducer->logical_ranks_ == 0) return {};
    return reducer->buckets_.offer_slot(parameter_, dtype, averages ? bucket : beside);
  }

 private:
  std::weak_ptr<Reducer> reducer_;
  size_t parameter_;
};

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

Reducer::Reducer(std::vector<NamedTensor> parameters, ProcessGroup group, ReducerOptions options)
    : group_(std::move(group)),
      allows_missing_(options.allows_missing()),
      construction_order_(next_order()),
      buckets_(parameters, group_, options,
               [this](size_t p) { return std::make_unique<ParameterHook>(weak_from_this(), p); }),
      order_(names_of(parameters)),
      reduction_(group_),
      missing_(group_, allows_missing_) {}

std::shared_ptr<Reducer> Reducer::create(std::vector<NamedTensor> parameters, ProcessGroup group,
                                         ReducerOptions options) {
  std::shared_ptr<Reducer> reducer(new Reducer(std::move(parameters), std::move(group), std::move(options)));
  reducer->buckets_.take_trainable();
  reducer->buckets_.lay_out({});
  return reducer;
}

Reducer::~Reducer() { OpenPasses::of_process().leave(this); }

void Reducer::register_comm_hook(CommHook hook) {
  if (reduction_.has_hook()) {
    throw Error(
        "DistributedDataParallel: register_comm_hook can be called once; a hook is registered already");
  }
  if (pass_.state == PassState::open || statistics_.passes > 0) {
    throw Error("DistributedDataParallel: register_comm_hook must be called before the first backward pass");
  }
  if (logical_ranks_ > 0) {
    throw Error(
        "DistributedDataParallel: register_comm_hook: gradients are added in the order of the logical ranks, which a hook "
        "would change");
  }
  reduction_.set_hook(std::move(hook));
  buckets_.close_gaps();  // a hook's buffer has none
  buckets_.lay_out(order_.parameters());
}

void Reducer::prepare() {
  // Inside a backward pass (a checkpoint that runs its forward again) everything stays where it is.
  if (torch::autograd::get_current_graph_task_id() != -1) return;
  order_.receive();
  check_kinds(buckets_);
  if (has_changed_trainable(buckets_)) {
    verify_trainable(group_, buckets_);
    buckets_.take_trainable();
    buckets_.lay_out(order_.parameters());
    order_.start_over();
  } else if (order_.take_new_layout() && buckets_.follow_order(order_.parameters())) {
    statistics_.has_rebuilt_buckets = true;
  }
  buckets_.hooks().follow();
}

void Reducer::arm(const std::vector<at::Tensor>& outputs) {
  pass_.take(PassEvent::synchronised_forward);
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
  if (!pass_.averages() && buckets_.hooks().any_runs()) begin();
}

void Reducer::on_gradient(size_t parameter) {
  buckets_.note_use(parameter);
  if (!pass_.leads_to_pass(PassEvent::gradient) || pass_.is_torn()) return;
  if (pass_.state != PassState::open) begin();
  const bool is_last = buckets_.count(parameter);
  order_.note(parameter);
  if (pass_.leaves_at_end || !is_last) return;
  buckets_.adopt(parameter);
  reduction_.start_ready(buckets_, pass_);
}

/// In a backward: a pass begins.
void Reducer::begin() {
  recover();
  if (begin_hook_) begin_hook_();
  const auto backward = std::make_shared<Backward>(shared_from_this());
  const int graph_task = torch::autograd::get_current_graph_task_id();
  OpenPasses::of_process().enter({this, construction_order_, graph_task, backward},
                                 [this](const Reducer& other) { check_apart(*this, other); });
  begin_round();
  pass_.state = PassState::open;
  pass_.backward = backward;
  pass_.leaves_at_end = join_hook_ != nullptr || buckets_.awaits_counts();
  pass_.is_timed = statistics_.times_next_pass();
  pass_.traced_start = timeline::is_on() ? timeline::now() : 0;
  pass_.start = pass_.moment();
  torch::autograd::Engine::get_default_engine().queue_callback(
      [backward, graph_task] { end_all(graph_task); });
}

/// Nothing has come, nothing has left.
void Reducer::begin_round() {
  buckets_.begin_pass();
  reduction_.begin_pass(buckets_);
  missing_.begin_pass();
  order_.forget_own();
  held_sparse_.clear();
  pass_ = Pass{.state = pass_.state, .divisor = logical_ranks_};
}

/// The first callback at the end of a backward ends all its passes, in the same order on all ranks; for the
/// others nothing is left. An error of one pass, which all ranks have, keeps none of the others from ending.
void Reducer::end_all(int graph_task) {
  std::exception_ptr first_error;
  while (Reducer* const reducer =
             OpenPasses::of_process().take_first(graph_task)) {  // its own callback keeps it
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

/// Ends the pass. `divisor`: join()'s; 0 outside.
void Reducer::end(int divisor) {
  if (divisor != 0) pass_.divisor = divisor;
  OpenPasses::of_process().leave(this);
  const bool was_cut_short = pass_.state == PassState::torn || pass_.state == PassState::absent;
  pass_.take(was_cut_short ? PassEvent::recovery : PassEvent::end);
  try {
    finish();
  } catch (const CommError&) {
    throw;  // the group is broken: nothing goes on
  } catch (...) {
    reduction_.abandon();
    order_.forget_own();  // the next layout must be the same on all ranks
    throw;
  }
}

void Reducer::finish() {
  const at::NoGradGuard no_grad;
  const Pass::Clock::time_point compute_end = pass_.moment();
  if (pass_.role == Role::active && pass_.leaves_at_end) buckets_.adopt_late();
  const OldGradients old = MissingGradients::contribute(buckets_, pass_);
  reduction_.start_ready(buckets_, pass_);
  average_sparse_gradients(group_, buckets_, pass_, std::exchange(held_sparse_, {}));
  reduction_.wait(buckets_, pass_);
  const bool are_complete = buckets_.are_complete();
  if (!are_complete && !missing_.settle(buckets_, pass_, old)) return order_.forget_own();
  order_.send(group_);
  if (pass_.role == Role::joined) {
    if (are_complete) take_averages(buckets_);
    return;
  }
  statistics_.count(pass_, compute_end, buckets_);
  for (const at::Tensor& gradient : buckets_.write_back()) hook_output(gradient);
  buckets_.end_pass();
}

/// The engine has dropped a backward pass.
void Reducer::backward_is_gone(std::thread::id thread) {
  const bool is_this_pass = pass_.state == PassState::open && pass_.is_torn();
  if (!is_this_pass || thread != std::this_thread::get_id()) return;
  pass_.take(PassEvent::exception);
  // Unless all have left the pass fails: nobody's gradients are of use.
  if (reduction_.have_all_left(buckets_)) held_sparse_ = part_with_gradients(buckets_);
  try {
    start_what_is_left();
  } catch (const std::exception& error) {  // recover() meets it again
    log::debug(std::string("DistributedDataParallel: a pass that an exception cut short: ") + error.what());
  }
}

/// The peers' passes wait for this rank's part, which is zeros from here on. Started, they can end without
/// this rank; it need not come back before it does something else. Only if nothing in it blocks.
void Reducer::start_what_is_left() {
  constexpr size_t kMostInFlight = 32;
  const auto& parameters = buckets_.parameters();
  const bool blocks = reduction_.has_hook() || join_hook_ || buckets_.buckets().size() > kMostInFlight ||
                      std::any_of(parameters.begin(), parameters.end(), [](const Parameter& parameter) {
                        return parameter.is_trainable && (parameter.is_sparse || !parameter.tensor.is_cpu());
                      });
  if (blocks || reduction_.have_all_left(buckets_)) return;
  const at::NoGradGuard no_grad;
  pass_.role = Role::failed;
  MissingGradients::contribute(buckets_, pass_);
  reduction_.start_ready(buckets_, pass_);
  missing_.start_report(buckets_, pass_);
}

void Reducer::recover() {
  if (pass_.state == PassState::absent) {
    if (buckets_.buckets().empty()) return pass_.take(PassEvent::recovery);
    begin_round();
    pass_.role = Role::absent;
  } else if (pass_.is_torn()) {
    pass_.state = PassState::torn;
    // After the last gradient nothing is missing.
    if (!reduction_.have_all_left(buckets_)) pass_.role = Role::failed;
  } else {
    return;
  }
  end(join_hook_ ? join_hook_() : 0);
}

void Reducer::shadow_pass(int divisor) {
  const at::NoGradGuard no_grad;
  begin_round();
  pass_.role = Role::joined;
  end(divisor);
}

void Reducer::average_over_logical_ranks(int count) {
  if (reduction_.has_hook() || statistics_.passes > 0 || logical_ranks_ > 0) {
    throw Error(
        "LogicalRanks: made after a backward pass, after other LogicalRanks, or with a communication hook; make it once, "
        "right after DistributedDataParallel");
  }
  logical_ranks_ = count;
  reduction_.add_in_tree_order();
}

void Reducer::keep_gradients() {
  buckets_.kept().push(take_gradients(buckets_.parameters(), allows_missing_));
}

void Reducer::forget_gradients() {
  buckets_.kept().clear();
  for (const Parameter& parameter : buckets_.parameters()) parameter.tensor.mutable_grad().reset();
}

void Reducer::average_gradients() {
  begin_round();
  pass_.state = PassState::open;
  pass_.leaves_at_end = true;
  pass_.is_timed = statistics_.times_next_pass();
  pass_.start = pass_.moment();
  for (const size_t p : buckets_.expected_order(order_.parameters())) {
    if (!buckets_.parameters()[p].tensor.grad().defined()) continue;
    buckets_.count(p);
    order_.note(p);
  }
  end(/*divisor=*/0);
}

}  // namespace lockstep
