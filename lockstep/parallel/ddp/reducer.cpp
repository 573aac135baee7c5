#include "lockstep/parallel/ddp/reducer.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <string>
#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/debug_level.h"
#include "lockstep/comm/process_group/impl.h"
#include "lockstep/parallel/bucket_slot_hook.h"
#include "lockstep/parallel/ddp/open_passes.h"
#include "lockstep/parallel/ddp/sparse_gradients.h"
#include "lockstep/parallel/ddp/trainable_check.h"
#include "lockstep/parallel/ddp/uneven_passes.h"
#include "lockstep/timeline/timeline.h"

namespace lockstep {
namespace {

using Parameter = GradientBuckets::Parameter;

uint64_t next_order() {
  static std::atomic<uint64_t> count{0};
  return count.fetch_add(1, std::memory_order_relaxed);
}

template <class Named>
std::vector<std::string> names_of(const std::vector<Named>& parameters) {
  std::vector<std::string> names;
  for (const Named& parameter : parameters) names.push_back(parameter.name);
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
    throw Error(
        fmt::format("DistributedDataParallel: parameter {} belongs to two wrapped modules that take part "
                    "in one backward pass; wrap only the outer module, or name the parameter in "
                    "parameters_and_buffers_to_ignore of one of them",
                    parameter.name));
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

/// A rank that has joined holds the others' averages: it may have to step for its share of the parameters.
void take_averages(const GradientBuckets& buckets) {
  for (const Parameter& parameter : buckets.parameters()) {
    if (parameter.view.defined()) buckets.take_average(parameter);
  }
}

/// What Tensor::register_hook() ends in, without its list of functions.
void add_hook(const at::Tensor& output, std::unique_ptr<torch::autograd::FunctionPreHook> hook) {
  output.grad_fn()->add_tensor_pre_hook(std::move(hook));
}

}  // namespace

/// On the accumulation of a parameter's gradient.
class Reducer::ParameterHook final : public BucketSlotHook {
 public:
  ParameterHook(std::weak_ptr<Reducer> reducer, size_t parameter)
      : reducer_(std::move(reducer)), parameter_(parameter) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& /*inputs*/) override {
    if (is_aside()) return outputs;
    if (const auto reducer = reducer_.lock()) reducer->on_gradient(parameter_);
    return outputs;
  }
  /// Does the next gradient begin a pass, or belong to the one under way?
  static bool counts_gradients(const Reducer& reducer) {
    return reducer.pass_.leads_to_pass(PassEvent::gradient) && !reducer.pass_.is_torn();
  }
  /// Has the parameter another wrapper, too, which counts this gradient?
  static bool is_counted_by_another(Reducer& reducer, size_t parameter) {
    return is_of_another(reducer, parameter, counts_gradients);
  }
  /// ... which has run?
  static bool is_of_another_that_has_run(Reducer& reducer, size_t parameter) {
    return is_of_another(reducer, parameter, [](const Reducer& other) { return other.bare_.has_run(); });
  }
  at::Tensor slot(at::ScalarType dtype) const override {
    using enum GradientBuckets::SlotUse;
    const auto reducer = is_aside() ? nullptr : reducer_.lock();
    if (!reducer || !reducer->changes().empty()) return {};
    const bool averages = reducer->pass_.averages();
    // Logical ranks add in the same order in a pass and outside.
    if (!averages && reducer->logical_ranks_ == 0) return {};
    return reducer->buckets_.offer_slot(parameter_, dtype, averages ? bucket : beside);
  }

 private:
  static bool is_of_another(Reducer& reducer, size_t parameter, bool (*is_such)(const Reducer& other)) {
    return reducer.buckets_.hooks().is_any(parameter, [&](const torch::autograd::FunctionPostHook& hook) {
      const auto* const any = dynamic_cast<const ParameterHook*>(&hook);
      const auto other = any != nullptr ? any->reducer_.lock() : nullptr;
      return other && other.get() != &reducer && is_such(*other);
    });
  }

  std::weak_ptr<Reducer> reducer_;
  size_t parameter_;
};

/// On an output of a synchronized forward. The graph keeps the reducer: a wrapper that goes away after
/// forward averages all the same.
class Reducer::OutputHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit OutputHook(std::shared_ptr<ArmedForward> forward) : forward_(std::move(forward)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    forward_->reducer().on_output(*forward_);
    return gradients;
  }

 private:
  std::shared_ptr<ArmedForward> forward_;
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

/// What a step asks of a reducer.
class Reducer::StepPart final : public detail::StepMember {
 public:
  explicit StepPart(Reducer& reducer) : reducer_(reducer) {}
  void begin_step() override {
    reducer_.order_.receive();
    reducer_.bare_.begin_step();
    reducer_.weight_writes.begin_step();
    commit_step();
  }
  void complete_step() override {
    reducer_.order_.receive();
    reducer_.bare_.check_step(
        [this](size_t p) { return ParameterHook::is_of_another_that_has_run(reducer_, p); });
  }
  void commit_step() override {
    reducer_.order_.commit();
    reducer_.buckets_.commit();
  }
  void drop_gradients() noexcept override {
    for (const Parameter& parameter : reducer_.buckets_.parameters()) parameter.tensor.mutable_grad().reset();
  }
  void fail_step() override {
    OpenPasses::of_process().leave(&reducer_);
    ArmedForward::forget(&reducer_);
    ++reducer_.failures_;
    reducer_.pass_ = {};
    reducer_.reduction_.drop();
    reducer_.missing_.begin_pass();
    reducer_.buckets_.drop_gradients(GradientBuckets::Drop::all_zero);
    reducer_.buckets_.roll_back();
    reducer_.order_.roll_back();
  }
  void restart() override {
    reducer_.order_ = ReadyOrder(names_of(reducer_.buckets_.parameters()));
    reducer_.buckets_.restart();
    commit_step();
  }
  std::vector<std::string> agreed() const override { return reducer_.order_.known_names(); }
  void load_agreed(const std::vector<std::string>& agreed) override {
    if (agreed.empty()) return;
    reducer_.order_.load(agreed);
    commit_step();
  }
  bool is_interrupted() const override {
    try {
      return reducer_.group_.impl().is_interrupted();
    } catch (const ValueError&) {  // the program has destroyed the group, and uses the wrapper no more
      return false;
    }
  }
  std::vector<ProcessGroup> own_groups() const override { return {reducer_.group_}; }

 private:
  Reducer& reducer_;
};

Reducer::Reducer(std::vector<NamedTensor> parameters, ProcessGroup group, ReducerOptions options)
    : group_(std::move(group)),
      allows_missing_(options.allows_missing()),
      construction_order_(next_order()),
      buckets_(parameters, group_, options,
               [this](size_t p) { return std::make_unique<ParameterHook>(weak_from_this(), p); }),
      order_(names_of(parameters)),
      reduction_(group_, options.wire_dtype),
      missing_(group_, allows_missing_),
      name_(options.module_name),
      bare_(options.module_name),
      in_step_(std::make_unique<StepPart>(*this)) {}

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
  // In the middle of a pass (a checkpoint that runs its forward again) everything stays where it is.
  if (pass_.averages()) return;
  // First of all, so that this rank says what has changed on it: all else fails too where the other ranks go on differently.
  const bool has_other_trainable = has_changed_trainable(buckets_);
  if (has_other_trainable) verify_trainable(group_, buckets_);
  order_.receive();
  std::string changes = describe_changed_kinds(buckets_);
  if (!changes.empty() && !additions_.empty()) changes += ", ";
  missing_.set_changes(changes + additions_);
  if (has_other_trainable) {
    buckets_.take_trainable();
    buckets_.lay_out(order_.parameters());
    order_.start_over();
  } else if (order_.take_new_layout() && buckets_.follow_order(order_.parameters())) {
    statistics_.has_rebuilt_buckets = true;
  }
  buckets_.hooks().follow();
}

void Reducer::arm(const std::vector<at::Tensor>& outputs) {
  pass_.take(PassEvent::synchronized_forward);
  bare_.note_forward();
  thread_ = std::this_thread::get_id();
  std::shared_ptr<ArmedForward> forward;
  // A rank on which no parameter gets a gradient takes part too: backward reaches an output first.
  for (const at::Tensor& output : outputs) {
    // A hook on a leaf (an input or a parameter handed back) would stay for good.
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    if (!forward) forward = std::make_shared<ArmedForward>(shared_from_this(), failures_);
    add_hook(output, std::make_unique<OutputHook>(forward));
  }
}

void Reducer::on_output(ArmedForward& forward) {
  if (!buckets_.hooks().any_runs()) return;
  if (!pass_.averages()) {
    recover();
    if (forward.failures() != failures_) {
      throw Error(
          fmt::format("DistributedDataParallel: backward has reached an output of {} of a step that has "
                      "failed: run forward again, on all ranks",
                      name_));
    }
    begin();
  }
  forward.reach();
}

void Reducer::disarm() {
  pass_.take(PassEvent::local_forward);
  if (at::GradMode::is_enabled()) bare_.note_forward();
}

void Reducer::on_gradient(size_t parameter) {
  if (!ParameterHook::counts_gradients(*this)) {
    // A gradient that another wrapper averages is none of this one's.
    if (ParameterHook::is_counted_by_another(*this, parameter)) return;
    buckets_.note_use(parameter);
    if (!bare_.has_run() && group_.size() > 1 && logical_ranks_ == 0 &&
        !ParameterHook::is_of_another_that_has_run(*this, parameter))
      bare_.note_gradient(parameter, buckets_.parameters()[parameter].name);
    return;
  }
  buckets_.note_use(parameter);
  if (pass_.state != PassState::open) {
    recover();
    begin();
  }
  if (pass_.role == Role::changed) return;
  const bool is_last = buckets_.count(parameter);
  order_.note(parameter);
  if (pass_.leaves_at_end || !is_last) return;
  buckets_.adopt(parameter);
  try {
    reduction_.start_ready(buckets_, pass_);
  } catch (const CommError&) {
    rethrow_in_pass(statistics_.passes);
  }
}

void Reducer::fail_forward(const char* place, const std::exception_ptr& cause) {
  thread_ = std::this_thread::get_id();
  ArmedForward::forget(this);
  const bool was_absent = pass_.state == PassState::absent;
  pass_.take(PassEvent::failed_forward);
  if (auto* const step = detail::StepUnderWay::current()) return step->fail(place + name_, cause);
  if (pass_.state == PassState::open)
    return;  // a checkpoint's: the backward around it ends by this exception
  if (pass_.state == PassState::absent && !was_absent) {
    if (buckets_.buckets().empty()) {  // nobody has a pass
      pass_.take(PassEvent::recovery);
    } else {
      begin_round();
      pass_.role = Role::absent;
      buckets_.move_out();
      OpenPasses::of_process().enter({this, construction_order_, /*graph_task=*/-1, /*life=*/{}, thread_},
                                     [](const Reducer&) {});
      start_what_is_left();
    }
  }
  ArmedForward::fail_all_of_thread();
}

/// In a backward: a pass begins. Nothing is owed.
void Reducer::begin() {
  if (auto* const step = detail::StepUnderWay::current()) step->set_place("in the backward of ", name_);
  if (callbacks.begin) callbacks.begin();
  const auto backward = std::make_shared<Backward>(shared_from_this());
  const int graph_task = torch::autograd::get_current_graph_task_id();
  OpenPasses::of_process().enter({this, construction_order_, graph_task, backward, thread_},
                                 [this](const Reducer& other) { check_apart(*this, other); });
  begin_round();
  ++statistics_.begun;
  pass_.state = PassState::open;
  pass_.backward = backward;
  // In DETAIL every start waits for the other ranks: with one that has failed, the order at the end is the only one.
  pass_.leaves_at_end =
      callbacks.join != nullptr || buckets_.awaits_counts() || debug_level() == DebugLevel::DETAIL;
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
  pass_ = Pass{.state = pass_.state, .divisor = logical_ranks_};
  if (!changes().empty()) pass_.role = Role::changed;
}

/// The first callback at the end of a backward ends all its passes, in the same order on all ranks; for the
/// others nothing is left. An error of one pass, which all ranks have, keeps none of the others from ending. If a rank
/// has left one of them, gradients of none are of use.
void Reducer::end_all(int graph_task) {
  std::exception_ptr first_error;
  std::vector<Reducer*> ended;  // their own callbacks keep them
  while (Reducer* const reducer = OpenPasses::of_process().take_first(graph_task)) {
    ended.push_back(reducer);
    try {
      reducer->end();
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
    if (reducer->pass_.traced_start == 0) continue;
    timeline::record(timeline::Kind::backward, "backward", reducer->pass_.traced_start, timeline::now());
  }
  if (std::any_of(ended.begin(), ended.end(),
                  [](const Reducer* reducer) { return reducer->pass_.has_failed; })) {
    for (Reducer* const reducer : ended) reducer->buckets_.drop_gradients();
  }
  if (auto* const step = detail::StepUnderWay::current(); step && !ended.empty()) {
    step->set_place("after the backward of ", ended.back()->name_);
  }
  if (first_error) std::rethrow_exception(first_error);
}

/// Ends the pass with the peers, which may have been cut short here.
void Reducer::end() {
  OpenPasses::of_process().leave(this);
  if (pass_.is_torn()) pass_.role = Role::failed;
  if (callbacks.join && pass_.role != Role::joined) pass_.divisor = callbacks.join();
  pass_.take(pass_.has_been_cut() ? PassEvent::recovery : PassEvent::end);
  if (pass_.state == PassState::open) pass_.state = PassState::idle;
  try {
    detail::call_before_agreement();
    finish();
    if (detail::StepUnderWay::current() != nullptr && group_.size() > 1) weight_writes.note_gradients();
    detail::call_after_averaging();
  } catch (const CommError&) {
    rethrow_in_pass(statistics_.passes);  // the group is broken: nothing goes on
  } catch (const StepFailedError&) {
    throw;
  } catch (...) {
    reduction_.abandon();
    order_.forget_own();  // the next layout must be the same on all ranks
    if (auto* const step = detail::StepUnderWay::current()) {
      step->fail("in the backward of " + name_, std::current_exception());
    } else if (!missing_.has_agreed()) {
      fail_end();
    }
    throw;
  }
  if (pass_.has_failed && pass_.role == Role::absent) ++failures_;
}

/// The end of the pass itself has thrown something here, as a hook's: with zeros, the peers end theirs.
void Reducer::fail_end() {
  pass_.role = Role::failed;
  try {
    finish();
  } catch (const std::exception& error) {  // the first error is the one to tell
    log::debug(std::string("DistributedDataParallel: the end of a pass that an exception cut short: ") +
               error.what());
  }
}

void Reducer::finish() {
  const at::NoGradGuard no_grad;
  const Pass::Clock::time_point compute_end = pass_.moment();
  if (pass_.role == Role::active && pass_.leaves_at_end) buckets_.adopt_late();
  const OldGradients old = MissingGradients::contribute(buckets_, pass_);
  pass_.has_ended = true;
  missing_.prepare_agreement(buckets_, pass_);
  reduction_.start_ready(buckets_, pass_);
  average_sparse_gradients(group_, buckets_, pass_);
  // What a hook throws later must still be told.
  if (!reduction_.has_hook()) missing_.start_agreement(buckets_);
  reduction_.wait(buckets_, pass_);
  const bool are_complete = missing_.agree(buckets_);
  if (!are_complete && !missing_.settle(buckets_, pass_, old)) return order_.forget_own();
  order_.send(group_);
  if (pass_.role == Role::joined) {
    if (are_complete) take_averages(buckets_);
    return;
  }
  statistics_.count(pass_, compute_end, buckets_);
  for (const at::Tensor& gradient : buckets_.write_back()) {
    const auto forward = std::make_shared<ArmedForward>(shared_from_this(), failures_);
    forward->reach();
    add_hook(gradient, std::make_unique<OutputHook>(forward));
  }
  buckets_.end_pass();
}

/// The engine has dropped a backward pass.
void Reducer::backward_is_gone(std::thread::id thread) {
  const bool is_this_pass = pass_.state == PassState::open && pass_.is_torn();
  if (!is_this_pass || thread != std::this_thread::get_id()) return;
  pass_.take(PassEvent::exception);
  pass_.role = Role::failed;
  ArmedForward::forget(this);
  if (auto* const step = detail::StepUnderWay::current())
    return step->fail("in the backward of " + name_, nullptr);
  // The pass fails: nobody's gradients are of use.
  buckets_.drop_gradients(GradientBuckets::Drop::vacate);
  OpenPasses::of_process().leave(this);
  OpenPasses::of_process().enter({this, construction_order_, /*graph_task=*/-1, /*life=*/{}, thread_},
                                 [](const Reducer&) {});
  start_what_is_left();
  ArmedForward::fail_all_of_thread();
}

/// The peers' passes wait for this rank's part, which is zeros from here on. Started, they can end without
/// this rank; it need not come back before it does something else. Only if nothing in it blocks.
void Reducer::start_what_is_left() {
  constexpr size_t kMostInFlight = 32;
  const auto& parameters = buckets_.parameters();
  const bool blocks = reduction_.has_hook() || callbacks.join || debug_level() == DebugLevel::DETAIL ||
                      buckets_.buckets().size() > kMostInFlight ||
                      std::any_of(parameters.begin(), parameters.end(), [](const Parameter& parameter) {
                        return parameter.is_trainable && (parameter.is_sparse || !parameter.tensor.is_cpu());
                      });
  if (blocks) return;
  const at::NoGradGuard no_grad;
  pass_.has_ended = true;
  try {
    MissingGradients::contribute(buckets_, pass_);
    missing_.prepare_agreement(buckets_, pass_);
    reduction_.start_ready(buckets_, pass_);
    missing_.start_agreement(buckets_);
    missing_.start_report(buckets_, pass_);
  } catch (const std::exception& error) {  // recover() meets it again
    log::debug(std::string("DistributedDataParallel: a pass that an exception cut short: ") + error.what());
  }
}

void Reducer::recover() {
  if (auto* const step = detail::StepUnderWay::current()) step->check();
  while (Reducer* const reducer = OpenPasses::of_process().take_owed(this)) {
    const auto keeps = reducer->shared_from_this();
    reducer->end();
  }
}

void Reducer::shadow_pass(int divisor) {
  const at::NoGradGuard no_grad;
  begin_round();
  pass_.role = Role::joined;
  if (divisor != 0) pass_.divisor = divisor;
  end();
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
  const auto backward = std::make_shared<Backward>(shared_from_this());
  begin_round();
  ++statistics_.begun;
  pass_.state = PassState::open;
  pass_.backward = backward;
  pass_.leaves_at_end = true;
  pass_.is_timed = statistics_.times_next_pass();
  pass_.start = pass_.moment();
  for (const size_t p : buckets_.expected_order(order_.parameters())) {
    if (pass_.role == Role::changed || !buckets_.parameters()[p].tensor.grad().defined()) continue;
    buckets_.count(p);
    order_.note(p);
  }
  end();
}

}  // namespace lockstep
