#include "lockstep/parallel/ddp/ddp_core.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/comm/debug_level.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/process_group/impl.h"
#include "lockstep/comm/step_members.h"
#include "lockstep/comm/wire_dtype.h"
#include "lockstep/parallel/activation_checkpoint.h"
#include "lockstep/parallel/ddp/device_check.h"
#include "lockstep/parallel/ddp/module_check.h"
#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/parallel/ddp/uneven_passes.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/timeline/timeline.h"

namespace lockstep::detail {
namespace {

size_t cap_bytes(const char* name, double mib) {
  if (!(mib > 0)) {
    throw ValueError(fmt::format("DistributedDataParallel: {} must be greater than 0, not {}", name, mib));
  }
  // Anything beyond what fits is no limit at all (infinity too).
  return static_cast<size_t>(std::min(mib * (1 << 20), 1e15));
}

ReducerOptions reducer_options(const DistributedDataParallelOptions& options, std::string module_name = {}) {
  ReducerOptions result;
  result.bucket_caps.clear();
  for (const double mib : options.bucket_cap_mb_list) {
    result.bucket_caps.push_back(cap_bytes("bucket_cap_mb_list", mib));
  }
  if (result.bucket_caps.empty()) {
    const size_t cap = cap_bytes("bucket_cap_mb", options.bucket_cap_mb);
    result.bucket_caps = {std::min(cap_bytes("first_bucket_cap_mb", options.first_bucket_cap_mb), cap), cap};
  }
  result.find_unused_parameters = options.find_unused_parameters;
  result.gradient_as_bucket_view = options.gradient_as_bucket_view;
  result.static_graph = options.static_graph;
  result.wire_dtype = options.wire_dtype;
  result.module_name = std::move(module_name);
  return result;
}

/// What must be the same on all ranks, a line each.
std::string describe_options(const DistributedDataParallelOptions& options, const ReducerOptions& reducer) {
  const auto dtype_of = [](const std::optional<at::ScalarType>& dtype) {
    return dtype ? c10::toString(*dtype) : "none";
  };
  std::string text = fmt::format(
      "option bucket_cap_mb of {} bytes\noption forward_sync_buffers {}\noption init_sync {}\n"
      "option find_unused_parameters {}\noption static_graph {}\noption backward_passes_per_step {}\n",
      fmt::join(reducer.bucket_caps, ", "), options.syncs_buffers(), options.init_sync,
      options.find_unused_parameters, options.static_graph, options.backward_passes_per_step);
  if (options.init_sync && !options.syncs_buffers_at_init()) {
    text += "option broadcast_buffers false instead of forward_sync_buffers false\n";
  }
  if (options.wire_dtype) {
    text += fmt::format("option wire_dtype {}\n",
                        *options.wire_dtype == WireDtype::BFLOAT16 ? "BFLOAT16" : "EXACT");
  }
  if (const auto& precision = options.mixed_precision) {
    text += fmt::format("option mixed_precision with param_dtype {}, reduce_dtype {}, buffer_dtype {}\n",
                        dtype_of(precision->param_dtype), dtype_of(precision->reduce_dtype),
                        dtype_of(precision->buffer_dtype));
  }
  return text;
}

void check_options(const torch::nn::Module* module, const DistributedDataParallelOptions& options) {
  if (module == nullptr) {
    throw ValueError("DistributedDataParallel: there is no module to wrap, the pointer to it is null");
  }
  reducer_options(options);  // throws for caps that are none
  if (options.forward_sync_buffers && options.broadcast_buffers &&
      *options.forward_sync_buffers != *options.broadcast_buffers) {
    throw ValueError(fmt::format(
        "DistributedDataParallel: forward_sync_buffers is {}, but broadcast_buffers, its older name, is {}; give "
        "forward_sync_buffers alone",
        *options.forward_sync_buffers, *options.broadcast_buffers));
  }
  if (options.backward_passes_per_step < 1) {
    throw ValueError(
        fmt::format("DistributedDataParallel: backward_passes_per_step must be at least 1, not {}",
                    options.backward_passes_per_step));
  }
}

void check_precision(const DistributedDataParallelOptions& options, const torch::nn::Module& module) {
  if (!options.mixed_precision || find_sparse_parameters(module).empty()) return;
  throw ValueError(
      "DistributedDataParallel: mixed_precision does not go together with embeddings with sparse=true");
}

/// Null: parameters keep their dtype in forward and backward.
std::shared_ptr<LowPrecision> make_low_precision(const DistributedDataParallelOptions& options,
                                                 const ModuleTensors& tensors) {
  if (!options.mixed_precision || !options.mixed_precision->param_dtype) return nullptr;
  return std::make_shared<LowPrecision>(tensors.named_parameters, *options.mixed_precision->param_dtype);
}

/// The dtype to average in, if it is not that of the gradients.
std::optional<at::ScalarType> find_low_reduction(const DistributedDataParallelOptions& options,
                                                 const ModuleTensors& tensors) {
  if (!options.mixed_precision) return std::nullopt;
  const MixedPrecision& precision = *options.mixed_precision;
  const auto dtype = precision.reduce_dtype ? precision.reduce_dtype : precision.param_dtype;
  const bool converts = dtype && std::any_of(tensors.parameters.begin(), tensors.parameters.end(),
                                             [&](const at::Tensor& p) { return p.scalar_type() != *dtype; });
  return converts ? dtype : std::nullopt;
}

void check_wire(const DistributedDataParallelOptions& options, const ModuleTensors& tensors,
                const ProcessGroup& group) {
  if (options.wire_dtype != WireDtype::BFLOAT16) return;
  if (!group.impl().traits().wire_dtype) {
    throw ValueError(
        fmt::format("DistributedDataParallel: wire_dtype BFLOAT16 needs the backend \"lockstep\", not \"{}\"",
                    group.backend_name()));
  }
  const auto reduced = find_low_reduction(options, tensors);
  for (const NamedTensor& parameter : tensors.named_parameters) {
    const at::Tensor& tensor = parameter.tensor;
    const at::ScalarType dtype = reduced && tensor.is_floating_point() ? *reduced : tensor.scalar_type();
    if (!tensor.requires_grad() || has_roundable_sums(dtype, ReduceOp::AVG)) continue;
    throw ValueError(fmt::format(
        "DistributedDataParallel: wire_dtype BFLOAT16 is for gradients of float32, float16 and bfloat16; "
        "those of the parameter {} are {}",
        parameter.name, c10::toString(dtype)));
  }
}

void verify_alike(const ProcessGroup& group, const DistributedDataParallelOptions& options,
                  const ModuleTensors& tensors) {
  verify_same_on_all_ranks(group, "DistributedDataParallel",
                           describe_options(options, reducer_options(options)) + tensors.description);
  for (const auto& [what, tensor] : tensors.written) verify_writable("DistributedDataParallel", what, tensor);
}

}  // namespace

/// What a step asks of a wrapper, beside its reducer.
class DdpCore::StepPart final : public StepMember {
 public:
  explicit StepPart(DdpCore& core) : core_(core) {}

  /// The first forward of a step is about to change the module's buffers.
  void keep_buffers() {
    if (std::exchange(keeps_buffers_, true)) return;
    const at::NoGradGuard no_grad;
    // Also those that were registered since the last forward, which follow_module() has not seen yet.
    const std::vector<at::Tensor> buffers = core_.registered_->has_changed()
                                                ? collect_tensors(*core_.module_, core_.options_).buffers
                                                : core_.tensors_.buffers;
    buffers_.resize(buffers.size());
    for (size_t i = 0; i < buffers.size(); ++i) {
      buffers_[i].tensor = buffers[i];
      const at::Tensor& from = buffers[i];
      at::Tensor& to = buffers_[i].value;
      if (!to.defined() || to.sizes() != from.sizes() || to.scalar_type() != from.scalar_type()) {
        to = from.detach().clone(at::MemoryFormat::Contiguous);
      } else if (from.is_cpu() && from.is_contiguous()) {
        if (from.nbytes() > 0) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
      } else {
        to.copy_(from);
      }
    }
  }
  void begin_step() override { commit_step(); }
  void commit_step() override {
    if (core_.buffer_sync_) core_.buffer_sync_->commit();
    keeps_buffers_ = false;
    forwards_ = core_.forwards_in_step_.count();
  }
  void fail_step() override {
    core_.forwards_in_step_.set(forwards_);
    if (core_.buffer_sync_) core_.buffer_sync_->roll_back();
    if (!std::exchange(keeps_buffers_, false)) return;
    const at::NoGradGuard no_grad;
    for (const KeptBuffer& buffer : buffers_) {
      // One that was given another shape in the step has no value to go back to.
      if (buffer.tensor.sizes() == buffer.value.sizes()) buffer.tensor.variable_data().copy_(buffer.value);
    }
  }
  std::string heal_problem() const override {
    // Those that keep nothing from one step to the next.
    static const std::set<std::string> kStateless{"",
                                                  "reduce_own_slices",
                                                  "allreduce_hook",
                                                  "fp16_compress_hook",
                                                  "bf16_compress_hook",
                                                  "powerSGD_hook",  // its PowerSGDState speaks for itself
                                                  "batched_powerSGD_hook",
                                                  "_reducer_allreduce_and_upcast_hook"};
    const std::string hook = core_.logging_data().comm_hook;
    if (!kStateless.contains(hook))
      return fmt::format("the communication hook {} may have a state of each rank's own", hook);
    return core_.options_.backward_passes_per_step > 1 ? "backward_passes_per_step counts over steps" : "";
  }
  const ProcessGroup* replica_group() const override { return &core_.group_; }
  uint64_t probe_weights() const override {
    return core_.reducer_ ? core_.reducer_->weight_writes.probe() : 0;
  }
  std::vector<ProcessGroup> own_groups() const override { return list_sync_batchnorm_groups(*core_.module_); }
  std::vector<at::Tensor> weights() const override {
    std::vector<at::Tensor> tensors;
    for (const NamedTensor& parameter : core_.tensors_.named_parameters) tensors.push_back(parameter.tensor);
    return tensors;
  }
  std::vector<at::Tensor> buffers() const override {
    std::vector<at::Tensor> tensors;
    if (!core_.options_.syncs_buffers()) return tensors;  // each rank's own
    const auto& ignored = core_.options_.parameters_and_buffers_to_ignore;
    for (const auto& buffer : core_.module_->named_buffers()) {
      const bool is_own = std::find(ignored.begin(), ignored.end(), buffer.key()) != ignored.end();
      if (buffer.value().defined() && !is_own) tensors.push_back(buffer.value());
    }
    return tensors;
  }
  std::vector<at::Tensor> common_statistics() const override {
    // Those of logical rank 0.
    return core_.has_logical_ranks_ ? core_.tensors_.buffers : std::vector<at::Tensor>();
  }

 private:
  /// As before the step's first forward. By the step's end the module may have other buffers.
  struct KeptBuffer {
    at::Tensor tensor, value;
  };

  DdpCore& core_;
  std::vector<KeptBuffer> buffers_{};
  bool keeps_buffers_ = false;
  int64_t forwards_ = 0;
};

DdpCore::DdpCore(std::shared_ptr<torch::nn::Module> module, const DistributedDataParallelOptions& options)
    : module_(std::move(module)),
      options_(options),
      group_(options.process_group ? *options.process_group : default_world()),
      in_step_(std::make_unique<StepPart>(*this)) {
  check_options(module_.get(), options_);
  name_ = module_->name();
  check_ignored_names(*module_, options_);
  tensors_ = collect_tensors(*module_, options_);
  registered_.emplace(module_);
  input_device_ = check_devices(tensors_.named_parameters, options_, group_.impl().traits().main_memory);
  check_precision(options_, *module_);
  verify_alike(group_, options_, tensors_);
  check_wire(options_, tensors_, group_);
  if (options_.init_sync) broadcast_tensors(group_, tensors_, /*source=*/0, options_.syncs_buffers_at_init());
  set_up_reducer();
  low_precision_ = make_low_precision(options_, tensors_);
  if (const auto dtype = find_low_reduction(options_, tensors_)) {
    const auto hook = [dtype = *dtype, wire_dtype = options_.wire_dtype](GradBucket& bucket) {
      return reduce_in(dtype, wire_dtype, bucket);
    };
    register_comm_hook(hook, "_reducer_allreduce_and_upcast_hook");
  }
  if (debug_level() >= DebugLevel::INFO) tell_construction(logging_data());
  if (group_.rank() == 0) tell_tied_parameters(*module_, options_.parameters_and_buffers_to_ignore);
}

DdpCore::~DdpCore() {
  // A graph may keep the reducer; the bare module's own backward passes are nobody else's concern any more.
  if (reducer_) reducer_->disarm();
}

void DdpCore::set_up_reducer() {
  own_group_.emplace(group_.duplicate());
  duplicate_sync_batchnorm_groups(*module_);
  reducer_ = Reducer::create(tensors_.named_parameters, *own_group_, reducer_options(options_, name_));
  statistics_.set_buckets(*reducer_);
  buffer_sync_ = std::make_unique<BufferSync>(
      *own_group_, options_.syncs_buffers() ? tensors_.buffers : std::vector<at::Tensor>(),
      tensors_.of_buffers);
}

std::optional<at::ScalarType> DdpCore::input_dtype() const {
  if (!low_precision_) return std::nullopt;
  return low_precision_->dtype();
}

void DdpCore::before_forward() {
  if (auto* const step = StepUnderWay::current()) {
    step->check();
    step->set_place("in the forward of ", name_);
    in_step_->keep_buffers();
  }
  if (c10::GradMode::is_enabled()) {
    reducer_->recover();
    if (before_gradients_) before_gradients_();
  }
  if (debug_level() >= DebugLevel::INFO && statistics_.take_new_pass(*reducer_)) {
    tell_pass(logging_data(), unused_parameters(*reducer_));
  }
  const auto guarded = [&](const auto& call) {
    try {
      call();
    } catch (const std::exception&) {
      forward_failed();
      throw;
    }
  };
  // In the middle of a pass a checkpoint that runs this forward again finds everything as it was. Otherwise the first run of
  // activation_checkpoint() did not synchronize, and that of a checkpoint without gradients has prepared nothing: then this is
  // a forward as any other.
  const bool is_in_pass = reducer_->is_in_pass(), is_again = is_in_pass || is_recomputing();
  forward_.synchronizes =
      sync && no_sync_guards == 0 && c10::GradMode::is_enabled() && (is_in_pass || !is_again);
  forward_.is_counted = forward_.synchronizes && !is_again && options_.backward_passes_per_step > 1;
  if (forward_.is_counted) forwards_in_step_.add();
  forward_.synchronizes =
      forward_.synchronizes && forwards_in_step_.count() % options_.backward_passes_per_step == 0;
  forward_.is_timed = reducer_->statistics().times_next_pass();
  forward_.is_traced = timeline::is_on();
  if (forward_.is_timed || forward_.is_traced) forward_.start = std::chrono::steady_clock::now();
  if (forward_.synchronizes && !is_again) {
    int source = 0;
    if (join_) source = join_->announce(join_index_, JoinSession::Phase::forward).highest_active_rank;
    guarded([&] { synchronize_forward(source); });
  }
  if (low_precision_) guarded([&] { low_precision_->begin_forward(); });
}

/// Buffers that were registered, replaced or grown since are followed, except where it would need an operation that the
/// ranks have not agreed on. Parameters are not.
void DdpCore::follow_module() {
  const ModuleTensors now = collect_tensors(*module_, options_);
  additions_ = describe_additions(tensors_, now);
  const auto add = [&](const std::string& text) { additions_ += (additions_.empty() ? "" : ", ") + text; };
  const bool are_alike = now.of_buffers == tensors_.of_buffers;
  if (!options_.syncs_buffers()) {
    tensors_.buffers = now.buffers;  // each rank's own
  } else if (has_logical_ranks_) {
    const auto same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
    if (!are_alike || !std::equal(now.buffers.begin(), now.buffers.end(), tensors_.buffers.begin(), same)) {
      add("a buffer was registered, replaced or converted since LogicalRanks was made");
    }
  } else if (are_alike || buffer_sync_->can_follow()) {
    tensors_.buffers = now.buffers;
    buffer_sync_->set_buffers(now.buffers, now.of_buffers);
  } else {
    const auto [here, then] = first_difference(now.of_buffers, tensors_.of_buffers);
    add(fmt::format("the module has {} but had {}", here, then));
  }
}

void DdpCore::synchronize_forward(int source) {
  if (registered_->take_change()) follow_module();
  try {
    if (!has_logical_ranks_) buffer_sync_->broadcast(source);
  } catch (const CommError&) {
    rethrow_in_pass(reducer_->statistics().passes);
  }
  const std::string& difference = buffer_sync_->difference();
  reducer_->refuse(additions_ + (additions_.empty() || difference.empty() ? "" : ", ") + difference);
  reducer_->prepare();
}

void DdpCore::after_forward(const std::vector<at::Tensor>& outputs) {
  const auto forward_end =
      forward_.is_timed || forward_.is_traced ? std::chrono::steady_clock::now() : forward_.start;
  if (forward_.is_traced) {
    timeline::record(timeline::Kind::forward, "forward", forward_.start.time_since_epoch().count(),
                     forward_end.time_since_epoch().count());
  }
  if (low_precision_) low_precision_->end_forward(outputs);
  if (auto* const step = StepUnderWay::current()) step->set_place("after the forward of ", name_);
  if (!c10::GradMode::is_enabled()) return;
  if (forward_.is_counted) forwards_in_step_.follow(outputs);
  if (!forward_.synchronizes) return reducer_->disarm();
  reducer_->arm(outputs);
  if (forward_.is_timed) statistics_.count_forward(forward_end - forward_.start);
}

void DdpCore::forward_failed() {
  if (low_precision_) low_precision_->end_forward({});
  constexpr const char* kPlace = "in the forward of ";
  if (auto* const step = StepUnderWay::current()) {
    // A rank may evaluate as it likes.
    if (c10::GradMode::is_enabled()) step->fail(kPlace + name_, std::current_exception());
  }
  if (!forward_.synchronizes || reducer_->is_in_pass()) return;
  reducer_->fail_forward(kPlace, std::current_exception());
  if (reducer_->changes().empty()) return;
  std::string cause;
  try {
    throw;
  } catch (const CommError&) {
    throw;
  } catch (const StepFailedError&) {
    throw;
  } catch (const c10::Error& error) {
    cause = error.what_without_backtrace();
  } catch (const std::exception& error) {
    cause = error.what();
  }
  throw Error(
      fmt::format("DistributedDataParallel: the module is no longer what was wrapped: {}; its forward "
                  "ended in an exception: {}",
                  reducer_->changes(), cause));
}

void DdpCore::register_comm_hook(CommHook hook, std::string name) {
  reducer_->register_comm_hook(std::move(hook));
  statistics_.set_comm_hook(std::move(name));
}

void DdpCore::use_logical_ranks(int count) {
  reducer_->average_over_logical_ranks(count);
  has_logical_ranks_ = true;
}

void DdpCore::call_before_gradients(std::function<void()> call) {
  before_gradients_ = call;
  reducer_->callbacks.begin = std::move(call);
}

void DdpCore::enter_join(std::shared_ptr<JoinSession> session, int index) {
  if (has_logical_ranks_) {
    throw ValueError("join: all logical ranks have inputs in every step; give each at least one sample");
  }
  if (options_.backward_passes_per_step > 1) {
    throw ValueError(
        "join: a model with backward_passes_per_step does not average in every backward pass; use no_sync()");
  }
  join_ = std::move(session);
  join_index_ = index;
  reducer_->callbacks.join = [this] {
    return join_->announce(join_index_, JoinSession::Phase::backward).divisor;
  };
}

void DdpCore::leave_join() {
  join_.reset();
  reducer_->callbacks.join = nullptr;
}

StateDict DdpCore::state_dict() const {
  StateDict state;
  state.scalars["forwards_in_step"] = forwards_in_step_.count() % options_.backward_passes_per_step;
  int64_t place = 0;
  if (reducer_->order().is_agreed()) {
    for (const std::string& name : reducer_->order().names()) state.scalars["ready_order." + name] = place++;
  }
  return state;
}

void DdpCore::load_state_dict(const StateDict& state) {
  constexpr const char* kWho = "DistributedDataParallel::load_state_dict";
  const auto forwards = state.get<int64_t>(kWho, "forwards_in_step");
  const StateDict places = state.part("ready_order");
  std::map<int64_t, std::string> order;
  for (const auto& [name, unused] : places.scalars) order[places.get<int64_t>(kWho, name)] = name;
  std::vector<std::string> names;
  for (auto& [place, name] : order) names.push_back(std::move(name));
  if (!names.empty()) reducer_->order().load(names);
  forwards_in_step_.set(forwards);
}

void DdpCore::recover() { reducer_->recover(); }

void DdpCore::shadow(const JoinSession::Answer& answer) {
  if (answer.phase == JoinSession::Phase::forward) {
    synchronize_forward(answer.highest_active_rank);
  } else {
    reducer_->shadow_pass(answer.divisor);
  }
}

DDPLoggingData DdpCore::logging_data() const {
  DDPLoggingData data;
  data.world_size = group_.size();
  data.rank = group_.rank();
  data.module_name = module_->name();
  data.backend_name = group_.backend_name();
  std::set<std::string> dtypes;
  for (const at::Tensor& parameter : tensors_.parameters) {
    dtypes.insert(c10::toString(parameter.scalar_type()));
    data.total_parameter_size_bytes += static_cast<int64_t>(parameter.nbytes());
  }
  data.dtypes.assign(dtypes.begin(), dtypes.end());
  data.num_parameter_tensors = static_cast<int64_t>(tensors_.parameters.size());
  data.bucket_cap_bytes = static_cast<int64_t>(reducer_options(options_).bucket_caps.back());
  data.broadcast_buffers = options_.syncs_buffers();
  data.find_unused_parameters = options_.find_unused_parameters;
  data.gradient_as_bucket_view = options_.gradient_as_bucket_view;
  data.static_graph = options_.static_graph;
  statistics_.fill(data, *reducer_);
  return data;
}

}  // namespace lockstep::detail
