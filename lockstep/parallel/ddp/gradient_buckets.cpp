#include "lockstep/parallel/ddp/gradient_buckets.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/step_members.h"
#include "lockstep/parallel/bucket_view.h"
#include "lockstep/timeline/timeline.h"

namespace lockstep {
namespace {

/// copy_, whose way through the dispatcher costs more than a small copy of what lies in memory as it is
/// meant.
void copy_to_slot(const at::Tensor& gradient, const GradientBuckets::Parameter& parameter) {
  const at::Tensor& view = parameter.view;
  if (parameter.small_slot != nullptr && gradient.is_cpu() && !gradient.is_conj() && !gradient.is_neg() &&
      gradient.strides() == view.strides() && gradient.scalar_type() == view.scalar_type()) {
    std::memcpy(parameter.small_slot, gradient.const_data_ptr(), parameter.bytes);
    return;
  }
  const at::NoGradGuard no_grad;
  view.copy_(gradient);
}

/// `planned`: its parameters, of `parameters`, may be none. `is_last`: it carries the agreement if it is small.
GradientBuckets::Bucket make_bucket(const std::vector<GradientBuckets::Parameter>& parameters,
                                    const BucketPlan::Bucket& planned, const ProcessGroup& group,
                                    bool is_last) {
  constexpr size_t kSmall = 64 << 10;
  const GradientBuckets::Parameter* const first =
      planned.parameters.empty() ? nullptr : &parameters[planned.parameters.front()];
  const at::ScalarType dtype = first != nullptr ? first->kind.scalar_type() : at::kFloat;
  const at::Device device = first != nullptr ? first->tensor.device() : at::Device(at::kCPU);
  const int64_t gradients =
      static_cast<int64_t>(planned.bytes) / static_cast<int64_t>(c10::elementSize(dtype));
  const bool carries = is_last && device.is_cpu() && planned.bytes <= kSmall;
  GradientBuckets::Bucket bucket;
  bucket.flat = device.is_cpu() ? group.empty_shared({gradients + (carries ? 1 : 0)}, dtype)
                                : at::empty({gradients}, at::TensorOptions(dtype).device(device));
  bucket.flat.zero_();  // the gaps between gradients are summed too
  if (carries) bucket.agreement = bucket.flat.narrow(0, gradients, 1);
  return bucket;
}

/// `offset`: in bytes.
void place(GradientBuckets::Parameter& parameter, const GradientBuckets::Bucket& bucket, size_t offset) {
  constexpr size_t kSmall = 64 << 10;
  const bool is_on_cpu = bucket.flat.is_cpu();
  parameter.view =
      view_in_bucket(bucket.flat, static_cast<int64_t>(offset / bucket.flat.element_size()), parameter.kind);
  parameter.bytes = parameter.view.nbytes();
  const bool is_small =
      parameter.bytes <= kSmall && is_on_cpu && parameter.view.is_non_overlapping_and_dense();
  parameter.small_slot = is_small ? parameter.view.mutable_data_ptr() : nullptr;
  // Matrix products add in another order where their result lies otherwise; and nobody would wait for
  // what another stream writes.
  parameter.fits_slot = is_on_cpu && offset % kGradientAlignment == 0;
}

/// Is the parameter's gradient memory of its bucket?
bool lies_in_bucket(const GradientBuckets::Parameter& parameter) {
  const at::Tensor& gradient = parameter.tensor.grad();
  return parameter.view.defined() && gradient.defined() && !gradient.is_sparse() &&
         gradient.is_alias_of(parameter.view);
}

/// What gradients in buckets hold, while there are no buckets.
class HeldGradients {
 public:
  explicit HeldGradients(const std::vector<GradientBuckets::Parameter>& parameters)
      : held_(parameters.size()) {
    for (size_t p = 0; p < parameters.size(); ++p) {
      at::Tensor& gradient = parameters[p].tensor.mutable_grad();
      if (!lies_in_bucket(parameters[p])) continue;
      held_[p] = gradient.clone();
      gradient.reset();
    }
  }
  void put_back(const std::vector<GradientBuckets::Parameter>& parameters) const {
    for (size_t p = 0; p < parameters.size(); ++p) {
      const at::Tensor& view = parameters[p].view;
      if (!held_[p].defined()) continue;
      if (view.defined()) view.copy_(held_[p]);
      parameters[p].tensor.mutable_grad() = view.defined() ? view : held_[p];
    }
  }

 private:
  std::vector<at::Tensor> held_;  // by parameter
};

BucketPlan make_plan(const std::vector<GradientBuckets::Parameter>& parameters,
                     const std::vector<size_t>& order, const std::vector<size_t>& caps, size_t alignment) {
  std::vector<GradientSpec> specs;
  for (const GradientBuckets::Parameter& parameter : parameters) {
    const at::Device device = parameter.tensor.device();
    const int kind =
        static_cast<int>(parameter.kind.scalar_type()) + 256 * (device.is_cpu() ? 0 : 1 + device.index());
    specs.push_back({parameter.kind.nbytes(), kind});
  }
  BucketPlan plan = plan_buckets(specs, order, caps, alignment);
  // Sparse gradients alone: an empty bucket waits for them.
  const bool any =
      std::any_of(parameters.begin(), parameters.end(),
                  [](const GradientBuckets::Parameter& parameter) { return parameter.is_trainable; });
  if (plan.buckets.empty() && any) plan.buckets.emplace_back();
  return plan;
}

}  // namespace

GradientBuckets::GradientBuckets(std::vector<NamedTensor> parameters, ProcessGroup group,
                                 ReducerOptions options, AccumulationHooks::Make make_hook)
    : group_(std::move(group)),
      options_(std::move(options)),
      hooks_(parameters.size(), std::move(make_hook)) {
  for (NamedTensor& named : parameters) {
    Parameter parameter;
    parameter.name = std::move(named.name);
    parameter.tensor = std::move(named.tensor);
    parameter.kind = at::empty_strided(parameter.tensor.sizes(), parameter.tensor.strides(),
                                       at::TensorOptions(parameter.tensor.scalar_type()).device(at::kMeta));
    parameter.is_sparse = named.has_sparse_gradient;
    parameters_.push_back(std::move(parameter));
  }
}

std::vector<size_t> GradientBuckets::expected_order(const std::vector<size_t>& known) const {
  std::vector<size_t> order;
  std::vector<bool> is_in(parameters_.size());
  const auto append = [&](size_t p) {
    if (is_in[p] || !parameters_[p].is_trainable || parameters_[p].is_sparse) return;
    is_in[p] = true;
    order.push_back(p);
  };
  for (const size_t p : known) append(p);
  for (const size_t p : reverse_order(parameters_.size())) append(p);
  return order;
}

void GradientBuckets::take_trainable() {
  keep_for_step();
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    if (parameter.tensor.requires_grad() == parameter.is_trainable) continue;
    parameter.is_trainable = !parameter.is_trainable;
    if (parameter.is_trainable) {
      hooks_.add(p, parameter.tensor);
    } else {
      hooks_.remove(p);
    }
  }
  counts_are_known_ = false;
}

void GradientBuckets::lay_out(const std::vector<size_t>& known) {
  lay_out_plan(make_plan(parameters_, expected_order(known), options_.bucket_caps, alignment_));
}

bool GradientBuckets::follow_order(const std::vector<size_t>& known) {
  BucketPlan plan = make_plan(parameters_, expected_order(known), options_.bucket_caps, alignment_);
  if (plan == plan_) return false;
  keep_for_step();
  lay_out_plan(std::move(plan));
  return true;
}

/// The old buckets go before the new ones come, so that both never take memory at once unless gradients are being kept.
void GradientBuckets::lay_out_plan(BucketPlan plan) {
  const at::NoGradGuard no_grad;
  const HeldGradients held(parameters_);
  for (Parameter& parameter : parameters_) {
    parameter.view.reset();
    parameter.fits_slot = false;
  }
  buckets_.clear();
  plan_ = std::move(plan);
  for (size_t b = 0; b < plan_.buckets.size(); ++b) {
    const BucketPlan::Bucket& planned = plan_.buckets[b];
    const bool is_last = b + 1 == plan_.buckets.size();
    const bool has_hook = alignment_ == 1;
    buckets_.push_back(make_bucket(parameters_, planned, group_, is_last && !has_hook));
    for (size_t i = 0; i < planned.parameters.size(); ++i) {
      Parameter& parameter = parameters_[planned.parameters[i]];
      parameter.bucket = b;
      place(parameter, buckets_.back(), planned.offsets[i]);
    }
  }
  for (Parameter& parameter : parameters_) {
    if (parameter.is_sparse) parameter.bucket = buckets_.size() - 1;
  }
  held.put_back(parameters_);
}

void GradientBuckets::begin_pass() {
  for (Bucket& bucket : buckets_) bucket.pending = 0;
  for (Parameter& parameter : parameters_) {
    parameter.is_ready = false;
    parameter.gradients = 0;
    if (parameter.is_trainable) ++buckets_[parameter.bucket].pending;
  }
}

bool GradientBuckets::count(size_t index) {
  Parameter& parameter = parameters_[index];
  ++parameter.gradients;
  if (parameter.is_ready) {
    throw Error(fmt::format(
        "DistributedDataParallel: parameter {} got gradient number {} in one backward pass{}", parameter.name,
        parameter.gradients,
        options_.static_graph
            ? ", more than in the first one: the graph is not the same in every step, so leave "
              "static_graph out"
            : ", as activation checkpoints with a backward of their own do; set static_graph if the "
              "graph is the same in every step"));
  }
  return !options_.static_graph || parameter.gradients >= parameter.expected;
}

void GradientBuckets::adopt(size_t index) {
  Parameter& parameter = parameters_[index];
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  if (gradient.defined() && gradient.is_sparse() != parameter.is_sparse) {
    throw ValueError(fmt::format(
        "DistributedDataParallel: parameter {}{}", parameter.name,
        parameter.is_sparse
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
    if (!is_same_memory(gradient, parameter.view)) copy_to_slot(gradient, parameter);
    if (!kept_.empty()) kept_.add_to(index, parameter.view);
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

void GradientBuckets::adopt_late() {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const Parameter& parameter = parameters_[p];
    if (parameter.is_trainable && parameter.gradients > 0 && !parameter.is_ready) adopt(p);
  }
}

at::Tensor GradientBuckets::offer_slot(size_t index, at::ScalarType dtype, SlotUse use) {
  const Parameter& parameter = parameters_[index];
  const bool is_in_bucket = use == SlotUse::bucket;
  if (!options_.gradient_as_bucket_view || c10::GradMode::is_enabled() ||
      torch::autograd::AnomalyMode::is_enabled()) {
    return {};
  }
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  if (gradient.defined() || (is_in_bucket && parameter.is_ready) || !parameter.fits_slot ||
      parameter.view.scalar_type() != dtype || !parameter.tensor.requires_grad()) {
    return {};
  }
  const auto* some_only = torch::autograd::get_current_graph_task_exec_info();
  if (some_only != nullptr && !some_only->empty()) return {};
  if (!hooks_.is_alone(index)) return {};
  return gradient = is_in_bucket ? parameter.view : at::empty_like(parameter.view);
}

void GradientBuckets::take_average(const Parameter& parameter) const {
  parameter.tensor.mutable_grad() =
      options_.gradient_as_bucket_view ? parameter.view : parameter.view.clone();
}

std::vector<at::Tensor> GradientBuckets::write_back() {
  std::vector<at::Tensor> of_graph;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.is_trainable || !parameter.is_ready || parameter.is_sparse) continue;
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    // None: of a pass that an exception cut short, whose gradients the program has dropped since.
    if (!gradient.defined() || is_same_memory(gradient, parameter.view)) continue;
    if (!gradient.requires_grad()) {
      gradient.copy_(parameter.view);
      continue;
    }
    // The average as a value, this rank's gradient as its derivative: a second backward pass averages the
    // derivatives, and the average of the derivatives is the derivative of the average.
    const at::AutoGradMode with_graph(true);
    gradient = at::add(parameter.view.clone(), at::sub(gradient, gradient.detach()));
    of_graph.push_back(gradient);
  }
  return of_graph;
}

void GradientBuckets::end_pass() {
  if (awaits_counts()) keep_for_step();
  for (Parameter& parameter : parameters_) {
    if (!parameter.is_trainable) continue;
    if (awaits_counts()) parameter.expected = std::max(parameter.gradients, 1);
    parameter.was_used = false;
  }
  counts_are_known_ = true;
}

void GradientBuckets::drop_gradients(Drop how) {
  const at::NoGradGuard no_grad;
  kept_.clear();
  for (Parameter& parameter : parameters_) {
    parameter.was_used = false;
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!gradient.defined() || (!parameter.is_trainable && how != Drop::all_zero)) continue;
    if (gradient.is_sparse() || gradient.requires_grad() ||
        (how == Drop::vacate && lies_in_bucket(parameter))) {
      gradient.reset();
    } else {
      gradient.zero_();
    }
  }
}

void GradientBuckets::move_out() {
  const at::NoGradGuard no_grad;
  for (const Parameter& parameter : parameters_) {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (lies_in_bucket(parameter)) gradient = gradient.clone();
  }
}

/// Before something changes that a failed step must put back.
void GradientBuckets::keep_for_step() {
  if (before_step_ || detail::StepUnderWay::current() == nullptr) return;
  before_step_ = Layout{.plan = plan_, .counts_are_known = counts_are_known_};
  for (const Parameter& parameter : parameters_) {
    before_step_->is_trainable.push_back(parameter.is_trainable);
    before_step_->expected.push_back(parameter.expected);
  }
}

void GradientBuckets::roll_back() {
  if (!before_step_) return;
  Layout before = *std::exchange(before_step_, std::nullopt);
  bool is_other = before.plan != plan_;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    parameter.expected = before.expected[p];
    if (parameter.is_trainable == before.is_trainable[p]) continue;
    is_other = true;
    parameter.is_trainable = before.is_trainable[p];
    if (parameter.is_trainable) {
      hooks_.add(p, parameter.tensor);
    } else {
      hooks_.remove(p);
    }
  }
  counts_are_known_ = before.counts_are_known;
  if (is_other) lay_out_plan(std::move(before.plan));
}

void GradientBuckets::restart() {
  before_step_.reset();
  counts_are_known_ = false;
  for (Parameter& parameter : parameters_) {
    parameter.expected = 1;
    parameter.was_used = false;
    parameter.gradients = 0;
  }
  take_trainable();
  lay_out({});
  before_step_.reset();
}

}  // namespace lockstep
