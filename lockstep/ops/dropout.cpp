#include "lockstep/ops/dropout.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "lockstep/ops/node.h"
#include "lockstep/ops/random_mask.h"
#include "lockstep/parallel/data_parallel/random_stream.h"

namespace lockstep::ops {
namespace {

/// to = from * scale where the mask is 1, else from * 0; plus `added`, where it is not null.
template <class T>
void scale_kept(const at::Tensor& from, const at::Tensor& mask, T scale, const T* added,
                const at::Tensor& to) {
  const T* const x = from.const_data_ptr<T>();
  const auto* const kept = mask.const_data_ptr<uint8_t>();
  T* const y = to.mutable_data_ptr<T>();
  at::parallel_for(0, from.numel(), at::internal::GRAIN_SIZE, [&](int64_t begin, int64_t end) {
    if (added == nullptr) {
      for (int64_t i = begin; i < end; ++i) y[i] = x[i] * (static_cast<T>(kept[i]) * scale);
    } else {
      for (int64_t i = begin; i < end; ++i) y[i] = x[i] * (static_cast<T>(kept[i]) * scale) + added[i];
    }
  });
}

/// What at::dropout multiplies the kept elements with, in the tensor's own arithmetic.
double scale_of(double p, at::ScalarType dtype) {
  return dtype == at::kFloat ? 1.0F / static_cast<float>(1 - p) : 1 / (1 - p);
}

at::Tensor masked(const at::Tensor& x, const at::Tensor& mask, double scale, const at::Tensor& added = {}) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor y = at::empty_like(x);
  if (x.scalar_type() == at::kFloat) {
    scale_kept(x, mask, static_cast<float>(scale), added.defined() ? added.const_data_ptr<float>() : nullptr,
               y);
  } else {
    scale_kept(x, mask, scale, added.defined() ? added.const_data_ptr<double>() : nullptr, y);
  }
  return y;
}

bool is_fast(const at::Tensor& x) {
  return x.is_cpu() && x.layout() == at::kStrided &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble) && !has_tangent(x);
}

/// Differentiates by x and, for dropout_add, by the residual, whose gradient is the output's.
struct DropoutBackward : torch::autograd::Node {
  torch::autograd::SavedVariable mask;  // a byte an element; at::dropout keeps four
  double scale = 0;

  std::string name() const override { return "lockstep::DropoutBackward"; }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    mask.reset_data();
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    torch::autograd::variable_list results(num_outputs());
    const at::Tensor& gradient = gradients[0];
    if (!gradient.defined()) return results;
    if (task_should_compute_output(0)) {
      const at::Tensor kept = mask.unpack();
      const bool differentiable = c10::GradMode::is_enabled() || !is_fast(gradient);
      results[0] = differentiable ? gradient * kept.to(gradient.scalar_type()).mul_(scale)
                                  : masked(gradient.contiguous(), kept, scale);
    }
    if (results.size() > 1) results[1] = gradient;
    return results;
  }
};

/// The fast way; undefined where something is not as it needs.
at::Tensor fast_dropout(const at::Tensor& x, double p, const at::Tensor& residual) {
  const bool adds = residual.defined();
  if (p <= 0 || p >= 1 || !is_fast(x) || !x.is_contiguous() || x.numel() == 0 || !draws_as_random_mask())
    return {};
  if (adds && !(is_fast(residual) && residual.is_contiguous() && residual.sizes() == x.sizes() &&
                residual.scalar_type() == x.scalar_type())) {
    return {};
  }
  const auto& of_replica = replica_generator();
  const at::Tensor mask = at::empty(x.sizes(), x.options().dtype(at::kByte).requires_grad(false));
  random_mask(of_replica ? *of_replica : at::detail::getDefaultCPUGenerator(), 1 - p,
              mask.mutable_data_ptr<uint8_t>(), x.numel());
  const double scale = scale_of(p, x.scalar_type());
  at::Tensor y = masked(x, mask, scale, residual);
  if (adds ? needs_gradient(x, residual) : needs_gradient(x)) {
    auto node = make_node<DropoutBackward>();
    node->mask = {mask, /*is_output=*/false};
    node->scale = scale;
    if (adds) {
      set_origin(y, std::move(node), x, residual);
    } else {
      set_origin(y, std::move(node), x);
    }
  }
  return y;
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, double p) {
  if (p <= 0) return x;
  if (at::Tensor y = fast_dropout(x, p, {}); y.defined()) return y;
  const auto& of_replica = replica_generator();
  if (!of_replica || p >= 1) return at::dropout(x, p, true);  // p = 1 draws nothing; more is refused
  // at::dropout's own operations, in its order.
  at::Tensor noise;
  {
    const at::NoGradGuard no_grad;
    noise = at::empty_like(x).bernoulli_(1 - p, of_replica).div_(1 - p);
  }
  return x * noise;
}

at::Tensor dropout_add(const at::Tensor& x, double p, const at::Tensor& residual) {
  if (at::Tensor y = fast_dropout(x, p, residual); y.defined()) return y;
  return dropout(x, p) + residual;
}

}  // namespace lockstep::ops
