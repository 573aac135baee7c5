#include "lockstep/parallel/ddp_core.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_set>

#include "lockstep/base/error.h"
#include "lockstep/comm/debug_level.h"
#include "lockstep/comm/init.h"
#include "lockstep/parallel/checks/device_check.h"
#include "lockstep/parallel/checks/module_check.h"
#include "lockstep/parallel/ddp_debug.h"
#include "lockstep/parallel/reducer/reducer.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/timeline/timeline.h"

namespace lockstep::detail {
namespace {

size_t cap_bytes(const char* name, double mib) {
  if (!(mib > 0)) {
    throw ValueError(std::string("DistributedDataParallel: ") + name + " must be greater than 0, not " +
                     std::to_string(mib));
  }
  // Anything beyond what fits is no limit at all (infinity too).
  return static_cast<size_t>(std::min(mib * (1 << 20), 1e15));
}

ReducerOptions reducer_options(const DistributedDataParallelOptions& options) {
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
  return result;
}

/// What must be the same on all ranks, a line each.
std::string describe_options(const DistributedDataParallelOptions& options, const ReducerOptions& reducer) {
  const auto dtype_of = [](const std::optional<at::ScalarType>& dtype) {
    return dtype ? c10::toString(*dtype) : "none";
  };
  std::string text = fmt::format(
      "option bucket_cap_mb of {} bytes\noption broadcast_buffers {}\noption init_sync {}\n"
      "option find_unused_parameters {}\noption static_graph {}\noption backward_passes_per_step {}\n",
      fmt::join(reducer.bucket_caps, ", "), options.broadcast_buffers, options.init_sync,
      options.find_unused_parameters, options.static_graph, options.backward_passes_per_step);
  if (const auto& precision = options.mixed_precision) {
    text += fmt::format("option mixed_precision with param_dtype {}, reduce_dtype {}, buffer_dtype {}\n",
                        dtype_of(precision->param_dtype), dtype_of(precision->reduce_dtype),
                        dtype_of(precision->buffer_dtype));
  }
  return text;
}

/// Parameters whose embedding hands out sparse gradients.
std::unordered_set<const at::TensorImpl*> sparse_parameters(const torch::nn::Module& module) {
  std::unordered_set<const at::TensorImpl*> found;
  for (const auto& child : module.modules()) {
    if (const auto* embedding = child->as<torch::nn::EmbeddingImpl>()) {
      if (embedding->options.sparse()) found.insert(embedding->weight.unsafeGetTensorImpl());
    } else if (const auto* bag = child->as<torch::nn::EmbeddingBagImpl>()) {
      if (bag->options.sparse()) found.insert(bag->weight.unsafeGetTensorImpl());
    }
  }
  return found;
}

std::vector<int64_t> sizes_of(const BucketPlan& plan) {
  std::vector<int64_t> sizes;
  for (const auto& bucket : plan.buckets) sizes.push_back(static_cast<int64_t>(bucket.bytes));
  return sizes;
}

}  // namespace

DataParallelCore::DataParallelCore(std::shared_ptr<torch::nn::Module> module,
                                   const DistributedDataParallelOptions& options)
    : module_(std::move(module)),
      options_(options),
      group_(options.process_group ? *options.process_group : default_world()) {
  if (module_ == nullptr) {
    throw ValueError("DistributedDataParallel: there is no module to wrap, the pointer to it is null");
  }
  const ReducerOptions for_reducer = reducer_options(options_);
  if (options_.backward_passes_per_step < 1) {
    throw ValueError("DistributedDataParallel: backward_passes_per_step must be at least 1, not " +
                     std::to_string(options_.backward_passes_per_step));
  }
  const std::vector<std::string> ignored_names = check_ignored();
  const std::set<std::string> ignored(ignored_names.begin(), ignored_names.end());
  const auto sparse = sparse_parameters(*module_);
  std::vector<NamedTensor> named;
  std::vector<std::pair<std::string, at::Tensor>> written;  // with what an error calls them
  std::string description = describe_options(options_, for_reducer);
  std::unordered_set<const at::TensorImpl*> seen;
  // The same tensor under a second name (tied weights, a module registered twice) is one parameter.
  for (const auto& item : module_->named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (ignored.count(item.key()) || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    named.push_back({item.key(), tensor, sparse.count(tensor.unsafeGetTensorImpl()) > 0});
    parameters_.push_back(tensor);
    description += describe_parameter(item.key(), tensor);
    if (options_.init_sync || tensor.requires_grad()) written.emplace_back("parameter " + item.key(), tensor);
  }
  for (const auto& item : module_->named_buffers()) {
    const at::Tensor& tensor = item.value();
    if (ignored.count(item.key()) || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    if (options_.mixed_precision && options_.mixed_precision->buffer_dtype && tensor.is_floating_point()) {
      tensor.set_data(tensor.to(*options_.mixed_precision->buffer_dtype));
    }
    buffers_.push_back(tensor);
    description += describe_buffer(item.key(), tensor);
    if (options_.init_sync || options_.broadcast_buffers) {
      written.emplace_back("buffer " + item.key(), tensor);
    }
  }
  input_device_ = check_devices(named, options_, group_.backend_name());
  if (options_.mixed_precision && !sparse.empty()) {
    throw ValueError(
        "DistributedDataParallel: mixed_precision does not go together with embeddings with sparse=true");
  }
  verify_same_on_all_ranks(group_, "DistributedDataParallel", description);
  for (const auto& [what, tensor] : written) verify_writable("DistributedDataParallel", what, tensor);
  if (options_.init_sync) broadcast_all(0);
  own_group_.emplace(group_.duplicate());
  duplicate_sync_batchnorm_groups(*module_);
  reducer_ = Reducer::create(std::move(named), *own_group_, for_reducer);
  first_bucket_sizes_ = sizes_of(reducer_->plan());
  buffer_sync_ = std::make_unique<BufferSync>(
      *own_group_, options_.broadcast_buffers ? buffers_ : std::vector<at::Tensor>());
  if (options_.mixed_precision) set_up_precision();
  if (debug_level() >= DebugLevel::INFO) tell_construction(logging_data());
  if (group_.rank() == 0) tell_tied_parameters(*module_, ignored);
}

DataParallelCore::~DataParallelCore() {
  // A graph may keep the reducer; the bare module's own backward passes are nobody else's concern any more.
  if (reducer_) reducer_->disarm();
}

void DataParallelCore::set_up_precision() {
  const MixedPrecision& precision = *options_.mixed_precision;
  if (precision.param_dtype) {
    low_precision_ = std::make_shared<LowPrecision>(parameters_, *precision.param_dtype);
  }
  const auto reduce_dtype = precision.reduce_dtype ? precision.reduce_dtype : precision.param_dtype;
  const bool converts =
      reduce_dtype && std::any_of(parameters_.begin(), parameters_.end(),
                                  [&](const at::Tensor& p) { return p.scalar_type() != *reduce_dtype; });
  if (!converts) return;
  const auto hook = [dtype = *reduce_dtype](GradBucket& bucket) { return reduce_in(dtype, bucket); };
  register_comm_hook(hook, "_reducer_allreduce_and_upcast_hook");
}

std::optional<at::ScalarType> DataParallelCore::input_dtype() const {
  if (!low_precision_) return std::nullopt;
  return low_precision_->dtype();
}

std::vector<std::string> DataParallelCore::check_ignored() const {
  for (const std::string& name : options_.parameters_and_buffers_to_ignore) {
    if (module_->named_parameters().contains(name) || module_->named_buffers().contains(name)) continue;
    throw ValueError("DistributedDataParallel: parameters_and_buffers_to_ignore names \"" + name +
                     "\", but the module has no parameter or buffer of that name");
  }
  return options_.parameters_and_buffers_to_ignore;
}

void DataParallelCore::broadcast_all(int source) {
  for (const at::Tensor& parameter : parameters_) group_.broadcast(parameter, {.src = source});
  for (const at::Tensor& buffer : buffers_) group_.broadcast(buffer, {.src = source});
}

void DataParallelCore::before_forward() {
  if (c10::GradMode::is_enabled()) {
    reducer_->recover();
    if (before_gradients_) before_gradients_();
  }
  if (debug_level() >= DebugLevel::INFO && reducer_->statistics().passes > told_passes_) {
    tell_pass(logging_data(), reducer_->unused_parameters());
    told_passes_ = reducer_->statistics().passes;
  }
  // A checkpoint that runs this forward again inside backward finds everything as it was.
  const bool is_again = torch::autograd::get_current_graph_task_id() != -1;
  forward_.synchronises = sync && c10::GradMode::is_enabled();
  if (forward_.synchronises && !is_again) ++forwards_in_step_;
  forward_.synchronises = forward_.synchronises && forwards_in_step_ % options_.backward_passes_per_step == 0;
  forward_.is_timed = reducer_->times_next_pass();
  forward_.is_traced = timeline::is_on();
  if (forward_.is_timed || forward_.is_traced) forward_.start = std::chrono::steady_clock::now();
  if (is_again) return;
  if (low_precision_) low_precision_->leave();
  if (forward_.synchronises) {
    int source = 0;
    if (join_) source = join_->announce(join_index_, JoinSession::Phase::forward).highest_active_rank;
    synchronise_forward(source);
  }
  if (low_precision_) low_precision_->enter();
}

void DataParallelCore::synchronise_forward(int source) {
  reducer_->prepare();
  if (!has_logical_ranks_) buffer_sync_->broadcast(source);
}

void DataParallelCore::after_forward(const std::vector<at::Tensor>& outputs) {
  const auto forward_end =
      forward_.is_timed || forward_.is_traced ? std::chrono::steady_clock::now() : forward_.start;
  if (forward_.is_traced) {
    timeline::record(timeline::Kind::forward, "forward", forward_.start.time_since_epoch().count(),
                     forward_end.time_since_epoch().count());
  }
  if (low_precision_ && torch::autograd::get_current_graph_task_id() == -1) {
    low_precision_->after_forward(outputs);
  }
  if (!c10::GradMode::is_enabled()) return;
  if (!forward_.synchronises) return reducer_->disarm();
  reducer_->arm(outputs);
  if (!forward_.is_timed) return;
  forward_time_ = (forward_end - forward_.start).count();
  forward_time_sum_ += forward_time_;
  ++forwards_;
}

void DataParallelCore::forward_failed() {
  if (low_precision_ && torch::autograd::get_current_graph_task_id() == -1) low_precision_->leave();
  if (forward_.synchronises && torch::autograd::get_current_graph_task_id() == -1) reducer_->fail_forward();
}

void DataParallelCore::register_comm_hook(CommHook hook, std::string name) {
  reducer_->register_comm_hook(std::move(hook));
  comm_hook_name_ = std::move(name);
}

void DataParallelCore::use_logical_ranks(int count) {
  const auto refuse = [](const std::string& what) { throw ValueError("LogicalRanks: " + what); };
  if (options_.mixed_precision || options_.backward_passes_per_step > 1) {
    refuse(
        "a DistributedDataParallel with mixed_precision or backward_passes_per_step has no such order of sums");
  }
  if (!options_.broadcast_buffers) {
    refuse("the module's buffers are logical rank 0's; leave broadcast_buffers true");
  }
  for (const auto& item : module_->named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!parameter.requires_grad()) continue;
    if (!parameter.is_cpu())
      refuse("parameter " + item.key() + " is on a GPU, whose sums have no fixed order");
    if (parameter.scalar_type() != at::kFloat && parameter.scalar_type() != at::kDouble) {
      refuse("parameter " + item.key() + " is " + c10::toString(parameter.scalar_type()) +
             ", whose gradients would be rounded between the sums; it must be float32 or float64");
    }
  }
  if (!sparse_parameters(*module_).empty()) {
    refuse("gradients of embeddings with sparse=true have no such order; make them dense (sparse=false)");
  }
  sync_batch_norms();
  reducer_->average_over_logical_ranks(count);
  has_logical_ranks_ = true;
}

std::vector<std::pair<std::string, BatchNormImpl*>> DataParallelCore::sync_batch_norms() const {
  std::vector<std::pair<std::string, BatchNormImpl*>> found;
  for (const auto& child : module_->named_modules()) {
    auto* const layer = dynamic_cast<BatchNormImpl*>(child.value().get());
    if (layer == nullptr || !layer->process_group()) continue;
    if (layer->process_group()->global_ranks() != group_.global_ranks()) {
      throw ValueError(fmt::format(
          "LogicalRanks: SyncBatchNorm {} is over ranks {}, the gradients are averaged over {}; logical ranks are those "
          "of DistributedDataParallel's group, so give the layer the same one",
          child.key(), fmt::join(layer->process_group()->global_ranks(), ", "),
          fmt::join(group_.global_ranks(), ", ")));
    }
    found.emplace_back(child.key(), layer);
  }
  return found;
}

void DataParallelCore::call_before_gradients(std::function<void()> call) {
  before_gradients_ = call;
  reducer_->set_begin_hook(std::move(call));
}

void DataParallelCore::enter_join(std::shared_ptr<JoinSession> session, int index) {
  if (has_logical_ranks_) {
    throw ValueError("join: all logical ranks have inputs in every step; give each at least one sample");
  }
  if (options_.backward_passes_per_step > 1) {
    throw ValueError(
        "join: a model with backward_passes_per_step does not average in every backward pass; use no_sync()");
  }
  join_ = std::move(session);
  join_index_ = index;
  reducer_->set_join_hook(
      [this] { return join_->announce(join_index_, JoinSession::Phase::backward).divisor; });
}

void DataParallelCore::leave_join() {
  join_.reset();
  reducer_->set_join_hook(nullptr);
}

StateDict DataParallelCore::state_dict() const {
  StateDict state;
  state.scalars["forwards_in_step"] = forwards_in_step_ % options_.backward_passes_per_step;
  int64_t place = 0;
  if (reducer_->has_agreed_order()) {
    for (const std::string& name : reducer_->ready_order()) state.scalars["ready_order." + name] = place++;
  }
  return state;
}

void DataParallelCore::load_state_dict(const StateDict& state) {
  constexpr const char* kWho = "DistributedDataParallel::load_state_dict";
  const auto forwards = state.get<int64_t>(kWho, "forwards_in_step");
  const StateDict places = state.part("ready_order");
  std::map<int64_t, std::string> order;
  for (const auto& [name, unused] : places.scalars) order[places.get<int64_t>(kWho, name)] = name;
  std::vector<std::string> names;
  for (auto& [place, name] : order) names.push_back(std::move(name));
  if (!names.empty()) reducer_->load_ready_order(names);
  forwards_in_step_ = forwards;
}

void DataParallelCore::recover() { reducer_->recover(); }

void DataParallelCore::shadow(const JoinSession::Answer& answer) {
  if (answer.phase == JoinSession::Phase::forward) {
    synchronise_forward(answer.highest_active_rank);
  } else {
    reducer_->shadow_pass(answer.divisor);
  }
}

DDPLoggingData DataParallelCore::logging_data() const {
  const ReducerStatistics& seen = reducer_->statistics();
  DDPLoggingData data;
  data.world_size = group_.size();
  data.rank = group_.rank();
  data.module_name = module_->name();
  data.backend_name = group_.backend_name();
  std::set<std::string> dtypes;
  for (const at::Tensor& parameter : parameters_) {
    dtypes.insert(c10::toString(parameter.scalar_type()));
    data.total_parameter_size_bytes += static_cast<int64_t>(parameter.nbytes());
  }
  data.dtypes.assign(dtypes.begin(), dtypes.end());
  data.num_parameter_tensors = static_cast<int64_t>(parameters_.size());
  data.bucket_cap_bytes = static_cast<int64_t>(reducer_options(options_).bucket_caps.back());
  data.broadcast_buffers = options_.broadcast_buffers;
  data.find_unused_parameters = options_.find_unused_parameters;
  data.gradient_as_bucket_view = options_.gradient_as_bucket_view;
  data.static_graph = options_.static_graph;
  data.has_rebuilt_buckets = seen.has_rebuilt_buckets;
  data.bucket_sizes = first_bucket_sizes_;
  if (seen.has_rebuilt_buckets) data.rebuilt_bucket_sizes = sizes_of(reducer_->plan());
  data.grad_ready_order = reducer_->ready_order();
  data.unused_parameter_size = static_cast<int64_t>(seen.unused_parameter_bytes);
  data.comm_hook = comm_hook_name_;
  data.iteration = seen.passes;
  data.forward_compute_time = forward_time_;
  data.backward_compute_time = seen.last.compute.count();
  data.backward_comm_time = seen.last.comm.count();
  data.backward_compute_comm_overlap_time = seen.last.overlap.count();
  if (forwards_ > 0) data.avg_forward_compute_time = forward_time_sum_ / forwards_;
  if (seen.timed_passes > 0) {
    data.avg_backward_compute_time = seen.sum.compute.count() / seen.timed_passes;
    data.avg_backward_comm_time = seen.sum.comm.count() / seen.timed_passes;
    data.avg_backward_compute_comm_overlap_time = seen.sum.overlap.count() / seen.timed_passes;
  }
  return data;
}

}  // namespace lockstep::detail
