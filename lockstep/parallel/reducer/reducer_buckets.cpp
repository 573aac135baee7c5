// Where gradients live, and in which order they are expected.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/checks/module_check.h"
#include "lockstep/parallel/reducer/bucket_slot_hook.h"
#include "lockstep/parallel/reducer/reducer.h"

namespace lockstep {
namespace {

constexpr int64_t kNoParameter = -1;

/// A tensor in the memory of `flat` at `offset` elements, laid out as `like` where that is dense
/// (channels_last too).
at::Tensor view_like(const at::Tensor& flat, int64_t offset, const at::Tensor& like) {
  const at::Tensor view = like.is_non_overlapping_and_dense()
                              ? flat.as_strided(like.sizes(), like.strides(), flat.storage_offset() + offset)
                              : flat.narrow(0, offset, like.numel()).view(like.sizes());
  // Not a view to autograd: Optimizer::zero_grad detaches gradients in place, which it refuses for views.
  return view.variable_data();
}

std::string kind_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << " " << tensor.sizes();
  return text.str();
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
    const auto reducer = reducer_.lock();
    return reducer ? reducer->offer_slot(parameter_, dtype) : at::Tensor();
  }

 private:
  std::weak_ptr<Reducer> reducer_;
  size_t parameter_;
};

bool Reducer::trainable_changed() const {
  return std::any_of(parameters_.begin(), parameters_.end(), [](const Parameter& parameter) {
    return parameter.tensor.requires_grad() != parameter.is_trainable;
  });
}

/// A parameter that got other memory (as torch::load() does) may have a new accumulation node, without our
/// hook.
void Reducer::follow_accumulators() {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    if (!parameter.is_trainable ||
        torch::autograd::impl::try_get_grad_accumulator(parameter.tensor) == parameter.accumulator) {
      continue;
    }
    remove_hook(parameter);
    add_hook(p);
  }
}

std::string Reducer::changed_names() const {
  std::string names;
  for (const Parameter& parameter : parameters_) {
    if (parameter.tensor.requires_grad() == parameter.is_trainable) continue;
    names += (names.empty() ? "" : ", ") + parameter.name;
  }
  return names;
}

void Reducer::take_trainable() {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    if (parameter.tensor.requires_grad() == parameter.is_trainable) continue;
    parameter.is_trainable = !parameter.is_trainable;
    if (parameter.is_trainable) {
      add_hook(p);
    } else {
      remove_hook(parameter);
    }
  }
}

void Reducer::add_hook(size_t index) {
  Parameter& parameter = parameters_[index];
  // The accumulator is owned weakly by the parameter: without this reference it, and the hook, would go away.
  parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
  parameter.hook =
      parameter.accumulator->add_post_hook(std::make_unique<ParameterHook>(weak_from_this(), index));
}

at::Tensor Reducer::offer_slot(size_t index, at::ScalarType dtype) {
  Parameter& parameter = parameters_[index];
  const bool averages = pass_.state == PassState::open && !is_torn();
  // Logical ranks add in the same order in a pass and outside.
  if ((!averages && logical_ranks_ == 0) || !options_.gradient_as_bucket_view ||
      c10::GradMode::is_enabled() || torch::autograd::AnomalyMode::is_enabled()) {
    return {};
  }
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  if (gradient.defined() || (averages && parameter.is_ready) || !parameter.fits_slot ||
      parameter.view.scalar_type() != dtype || !parameter.tensor.requires_grad()) {
    return {};
  }
  const auto* some_only = torch::autograd::get_current_graph_task_exec_info();
  if (some_only != nullptr && !some_only->empty()) return {};
  torch::autograd::Node& accumulator = *parameter.accumulator;
  if (!accumulator.tensor_pre_hooks().empty() || !accumulator.pre_hooks().empty() ||
      accumulator.post_hooks().size() > 1 || accumulator.tensor_post_acc_grad_hooks() != nullptr) {
    return {};
  }
  return gradient = averages ? parameter.view : at::empty_like(parameter.view);
}

void Reducer::remove_hook(Parameter& parameter) {
  if (parameter.accumulator) parameter.accumulator->del_post_hook(parameter.hook);
  parameter.accumulator.reset();
}

/// Parameters in the order in which gradients became ready, then those of which that is not known, backwards.
std::vector<size_t> Reducer::known_order() const {
  std::vector<size_t> order;
  std::vector<bool> is_in(parameters_.size());
  const auto append = [&](size_t p) {
    if (is_in[p] || !parameters_[p].is_trainable || parameters_[p].is_sparse) return;
    is_in[p] = true;
    order.push_back(p);
  };
  for (const size_t p : order_) append(p);
  for (const size_t p : reverse_order(parameters_.size())) append(p);
  return order;
}

BucketPlan Reducer::make_plan(const std::vector<size_t>& order) const {
  std::vector<GradientSpec> specs;
  for (const Parameter& parameter : parameters_) {
    const at::Device device = parameter.tensor.device();
    const int kind =
        static_cast<int>(parameter.tensor.scalar_type()) + 256 * (device.is_cpu() ? 0 : 1 + device.index());
    specs.push_back({parameter.tensor.nbytes(), kind});
  }
  BucketPlan plan = plan_buckets(specs, order, options_.bucket_caps, comm_hook_ ? 1 : kGradientAlignment);
  // Sparse gradients alone: an empty bucket tells of missing ones.
  const bool any = std::any_of(parameters_.begin(), parameters_.end(),
                               [](const Parameter& parameter) { return parameter.is_trainable; });
  if (plan.buckets.empty() && any) plan.buckets.emplace_back();
  return plan;
}

void Reducer::lay_out(BucketPlan plan) {
  const at::NoGradGuard no_grad;
  // What gradients hold survives. The old buckets go before the new ones come, so that both never take
  // memory at once unless gradients are being kept.
  std::vector<at::Tensor> held(parameters_.size());
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (parameter.view.defined() && gradient.defined() && gradient.is_alias_of(parameter.view)) {
      held[p] = gradient.clone();
      gradient.reset();
    }
    parameter.view.reset();
    parameter.fits_slot = false;
  }
  buckets_.clear();
  plan_ = std::move(plan);
  for (size_t b = 0; b < plan_.buckets.size(); ++b) {
    const BucketPlan::Bucket& planned = plan_.buckets[b];
    const at::ScalarType dtype = planned.parameters.empty()
                                     ? at::kFloat
                                     : parameters_[planned.parameters.front()].tensor.scalar_type();
    const auto element = static_cast<int64_t>(c10::elementSize(dtype));
    const int64_t gradients = static_cast<int64_t>(planned.bytes) / element;
    const bool is_last = b + 1 == plan_.buckets.size();
    Bucket bucket;
    const at::Device device = planned.parameters.empty()
                                  ? at::Device(at::kCPU)
                                  : parameters_[planned.parameters.front()].tensor.device();
    if (device.is_cpu()) {
      bucket.flat = group_.empty_shared({gradients + (is_last ? 1 : 0)}, dtype);
      if (is_last) bucket.missing = bucket.flat.narrow(0, gradients, 1);
    } else {
      bucket.flat = at::empty({gradients}, at::TensorOptions(dtype).device(device));
      if (is_last) bucket.missing = at::zeros({1});
    }
    bucket.flat.zero_();  // the gaps between gradients are summed too
    for (size_t i = 0; i < planned.parameters.size(); ++i) {
      Parameter& parameter = parameters_[planned.parameters[i]];
      parameter.bucket = b;
      parameter.view =
          view_like(bucket.flat, static_cast<int64_t>(planned.offsets[i]) / element, parameter.tensor);
      constexpr size_t kSmall = 64 << 10;
      parameter.bytes = parameter.view.nbytes();
      const bool is_small =
          parameter.bytes <= kSmall && device.is_cpu() && parameter.view.is_non_overlapping_and_dense();
      // Matrix products add in another order where their result lies otherwise; and nobody would wait for
      // what another stream writes.
      parameter.fits_slot = device.is_cpu() && planned.offsets[i] % kGradientAlignment == 0;
      parameter.small_slot = is_small ? parameter.view.mutable_data_ptr() : nullptr;
    }
    buckets_.push_back(std::move(bucket));
  }
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    if (parameter.is_sparse) parameter.bucket = buckets_.size() - 1;
    if (!held[p].defined()) continue;
    if (parameter.view.defined()) parameter.view.copy_(held[p]);
    parameter.tensor.mutable_grad() = parameter.view.defined() ? parameter.view : held[p];
  }
}

void Reducer::prepare() {
  // Inside a backward pass (a checkpoint that runs its forward again) everything stays where it is.
  if (torch::autograd::get_current_graph_task_id() != -1) return;
  take_order();
  for (const Parameter& parameter : parameters_) {
    if (!parameter.view.defined()) continue;
    const at::Tensor &now = parameter.tensor, &then = parameter.view;
    if (now.scalar_type() == then.scalar_type() && now.sizes() == then.sizes()) continue;
    throw Error("DistributedDataParallel: parameter " + parameter.name + " is " + kind_of(now) +
                " now but was " + kind_of(then) +
                " when the module was wrapped; convert or load the module before wrapping it");
  }
  if (trainable_changed()) {
    try {
      verify_trainable();
    } catch (const MismatchError& error) {
      // The others are elsewhere: for them nothing has changed.
      throw MismatchError("DistributedDataParallel: requires_grad of " + changed_names() +
                          " changed on rank " + std::to_string(group_.rank()) +
                          " and not on all ranks before the same forward, as it must: " + error.what());
    }
    take_trainable();
    lay_out(make_plan(known_order()));
    order_state_ = Order::own;
    counts_are_known_ = false;
  } else if (order_state_ == Order::agreed) {
    lay_out_in_order();
  }
  follow_accumulators();
}

/// Every rank saw its gradients in some order: rank 0's is everybody's. It leaves at the end of a pass, where
/// all ranks are together (forwards may come in another order on each), but nobody waits for it there: a rank
/// whose backward ended in an exception after its last gradient may not be there yet.
void Reducer::send_order() {
  order_message_ = at::full({static_cast<int64_t>(parameters_.size())}, kNoParameter, at::kLong);
  std::copy(order_.begin(), order_.end(), order_message_.mutable_data_ptr<int64_t>());
  order_work_ = group_.broadcast_async(order_message_);
  order_state_ = Order::sent;
}

/// Waits for rank 0's order, if it has been sent.
void Reducer::take_order() {
  if (order_state_ != Order::sent) return;
  std::exchange(order_work_, nullptr)->wait();
  const auto* const begin = order_message_.const_data_ptr<int64_t>();
  order_.assign(begin, std::find(begin, begin + order_message_.numel(), kNoParameter));
  order_message_.reset();
  order_state_ = Order::agreed;
}

void Reducer::lay_out_in_order() {
  order_state_ = Order::laid_out;
  BucketPlan plan = make_plan(known_order());
  if (plan == plan_) return;
  lay_out(std::move(plan));
  statistics_.has_rebuilt_buckets = true;
}

void Reducer::verify_trainable() const {
  std::string text;
  for (const Parameter& parameter : parameters_) {
    text += describe_parameter(parameter.name, parameter.tensor);
  }
  verify_same_on_all_ranks(group_, "DistributedDataParallel", text);
}

std::vector<std::string> Reducer::unused_parameters() const {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters_) {
    if (parameter.is_trainable && !parameter.is_ready) names.push_back(parameter.name);
  }
  return names;
}

void Reducer::load_ready_order(const std::vector<std::string>& names) {
  take_order();
  std::map<std::string_view, size_t> places;
  for (size_t p = 0; p < parameters_.size(); ++p) places[parameters_[p].name] = p;
  std::vector<size_t> order;
  for (const std::string& name : names) {
    const auto found = places.find(name);
    if (found == places.end()) {
      throw ValueError("DistributedDataParallel: the loaded state names parameter " + name +
                       ", which this module does not have");
    }
    order.push_back(found->second);
  }
  order_ = std::move(order);
  order_state_ = Order::agreed;
}

std::vector<std::string> Reducer::ready_order() {
  take_order();
  std::vector<std::string> names;
  for (const size_t p : order_) names.push_back(parameters_[p].name);
  return names;
}

}  // namespace lockstep
