#include "lockstep/parallel/data_parallel/replica_gradients.h"

#include <ATen/ops/add.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <span>
#include <utility>

#include "lockstep/comm/shm_tensor.h"
#include "lockstep/parallel/bucket_slot_hook.h"
#include "lockstep/parallel/bucket_view.h"
#include "lockstep/shm/reduce/reduce.h"

namespace lockstep {
namespace {

at::Tensor add_in_tree(std::span<const at::Tensor> tensors) {
  if (tensors.size() == 1) return tensors.front();
  size_t left = 1;
  while (left * 2 < tensors.size()) left *= 2;
  return at::add(add_in_tree(tensors.first(left)), add_in_tree(tensors.subspan(left)));
}

}  // namespace

at::Tensor tree_sum(const std::vector<at::Tensor>& tensors) { return add_in_tree(tensors); }

std::vector<BucketSlotHook*> hooks_for_sums(const at::Tensor& parameter) {
  std::vector<BucketSlotHook*> found;
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!accumulator) return found;
  for (const auto& hook : accumulator->post_hooks()) {
    auto* const ours = dynamic_cast<BucketSlotHook*>(hook.get());
    if (ours != nullptr && ours->wants_sum()) found.push_back(ours);
  }
  return found;
}

BucketPlan plan_replica_buckets(const std::vector<at::Tensor>& parameters) {
  std::vector<GradientSpec> specs;
  for (const at::Tensor& parameter : parameters) {
    specs.push_back({parameter.nbytes(), static_cast<int>(parameter.scalar_type())});
  }
  std::vector<size_t> order = reverse_order(parameters.size());
  std::erase_if(order, [&](size_t p) { return !parameters[p].requires_grad(); });
  return plan_buckets(specs, order, {size_t{1} << 20, size_t{25} << 20});
}

class ReplicaGradients::Hook final : public BucketSlotHook {
 public:
  Hook(ReplicaGradients* owner, size_t index) : owner_(owner), index_(index) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& /*inputs*/) override {
    owner_->on_gradient(index_);
    return outputs;
  }
  at::Tensor slot(at::ScalarType dtype) const override { return owner_->offer(index_, dtype); }
  bool wants_sum() const override { return false; }

 private:
  ReplicaGradients* owner_;  // removes the hook before it goes
  size_t index_;
};

ReplicaGradients::ReplicaGradients(std::vector<at::Tensor> parameters, const BucketPlan& plan)
    : slots_(parameters.size()) {
  const at::NoGradGuard no_grad;
  for (size_t p = 0; p < parameters.size(); ++p) {
    Slot& slot = slots_[p];
    slot.parameter = std::move(parameters[p]);
    if (!slot.parameter.requires_grad()) continue;
    slot.accumulator = torch::autograd::impl::grad_accumulator(slot.parameter);
    slot.hook = slot.accumulator->add_post_hook(std::make_unique<Hook>(this, p));
  }
  for (const BucketPlan::Bucket& planned : plan.buckets) {
    const at::Tensor& like = slots_[planned.parameters.front()].parameter;
    const auto element = static_cast<int64_t>(like.element_size());
    const auto count = static_cast<int64_t>(planned.bytes) / element;
    const at::Tensor& bucket = buckets_.emplace_back(at::zeros({count}, like.options().requires_grad(false)));
    for (size_t i = 0; i < planned.parameters.size(); ++i) {
      Slot& slot = slots_[planned.parameters[i]];
      slot.view = view_in_bucket(bucket, static_cast<int64_t>(planned.offsets[i]) / element, slot.parameter);
    }
  }
}

ReplicaGradients::~ReplicaGradients() {
  for (Slot& slot : slots_) {
    if (slot.accumulator) slot.accumulator->del_post_hook(slot.hook);
  }
}

void ReplicaGradients::begin() {
  is_active_ = true;
  for (Slot& slot : slots_) slot.is_used = false;
}

at::Tensor ReplicaGradients::offer(size_t index, at::ScalarType dtype) {
  Slot& slot = slots_[index];
  if (!is_active_ || c10::GradMode::is_enabled() || torch::autograd::AnomalyMode::is_enabled()) return {};
  at::Tensor& gradient = slot.parameter.mutable_grad();
  if (gradient.defined() || slot.is_used || !slot.view.defined() || slot.view.scalar_type() != dtype)
    return {};
  torch::autograd::Node& accumulator = *slot.accumulator;
  if (!accumulator.tensor_pre_hooks().empty() || !accumulator.pre_hooks().empty() ||
      accumulator.post_hooks().size() > 1 || accumulator.tensor_post_acc_grad_hooks() != nullptr) {
    return {};
  }
  return gradient = slot.view;
}

void ReplicaGradients::on_gradient(size_t index) {
  Slot& slot = slots_[index];
  if (!is_active_) return;
  at::Tensor& gradient = slot.parameter.mutable_grad();
  slot.is_used = true;
  if (gradient.defined() && gradient.is_sparse()) return;
  const at::NoGradGuard no_grad;
  if (!gradient.defined()) {
    slot.view.zero_();
  } else if (!is_same_memory(gradient, slot.view)) {
    slot.view.copy_(gradient);
  }
  gradient = slot.view;
}

void ReplicaGradients::end(End how) {
  const bool ended_well = how == End::complete;
  is_active_ = false;
  const at::NoGradGuard no_grad;
  for (Slot& slot : slots_) {
    if (!slot.view.defined()) continue;
    if (!ended_well) slot.parameter.mutable_grad().reset();
    if (!ended_well) slot.is_used = false;
    if (!slot.is_used && ended_well) slot.view.zero_();
  }
}

void reduce_buckets(const std::vector<std::unique_ptr<ReplicaGradients>>& replicas, int count, bool averages,
                    int part, int parts) {
  constexpr int64_t kLine = 64;  // elements: whole cache lines of any dtype
  const auto n = static_cast<size_t>(count);
  std::vector<const void*> sources(n);
  for (size_t b = 0; b < replicas.front()->buckets().size(); ++b) {
    // A complex number is a pair of real ones.
    const auto bucket_of = [&](size_t r) {
      const at::Tensor& bucket = replicas[r]->buckets()[b];
      return bucket.is_complex() ? at::view_as_real(bucket).view({-1}) : bucket;
    };
    const at::Tensor bucket = bucket_of(0);
    const int64_t lines = (bucket.numel() + kLine - 1) / kLine;
    const int64_t begin = std::min(lines * part / parts * kLine, bucket.numel());
    const int64_t end = std::min(lines * (part + 1) / parts * kLine, bucket.numel());
    if (begin == end) continue;
    const auto offset = static_cast<size_t>(begin) * bucket.element_size();
    for (size_t r = 0; r < n; ++r) {
      sources[r] = static_cast<const char*>(bucket_of(r).const_data_ptr()) + offset;
    }
    void* destination = static_cast<char*>(bucket.mutable_data_ptr()) + offset;
    shm::reduce(to_shm(bucket), averages ? ReduceOp::AVG : ReduceOp::SUM, sources.data(), n, &destination, 1,
                static_cast<size_t>(end - begin));
  }
}

}  // namespace lockstep
