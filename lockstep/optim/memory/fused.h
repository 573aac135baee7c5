// What the fused optimizers share.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/optim/optimizer_state.h"

namespace lockstep::detail {

/// Throws ValueError before anything has changed: a state that is begun would count in the next step.
inline void refuse_sparse_gradients(const char* name, const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined() && parameter.grad().is_sparse())
        throw ValueError(std::string(name) + " does not take sparse gradients");
    }
  }
}

/// The fused kernels walk raw memory, as far as the parameter's reaches. Throws ValueError, before anything has changed,
/// for a gradient or a state of another shape. `visit(state, check)` calls check(name, tensor) for each tensor of one
/// parameter's state.
template <class Visit>
void check_shapes(const char* name, const torch::optim::Optimizer& optimizer, const Visit& visit) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      const auto check = [&](const char* what, const at::Tensor& tensor) {
        if (tensor.defined() && tensor.sizes() != parameter.sizes())
          refuse_shape(name, what, tensor, parameter);
      };
      check("the gradient", parameter.grad());
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found != optimizer.state().end() && found->second) visit(*found->second, check);
    }
  }
}

/// The fused kernels walk raw memory, so gradients and state must be laid out as their parameter is.
inline at::Tensor laid_out_like(const at::Tensor& tensor, const at::Tensor& parameter) {
  if (tensor.strides() == parameter.strides() && tensor.scalar_type() == parameter.scalar_type())
    return tensor;
  return at::empty_like(parameter).copy_(tensor);
}

/// What the fused kernels work on in place of a parameter that has gaps or overlaps in memory: a copy, and
/// `parameter` as it is otherwise.
inline at::Tensor without_gaps(const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense() ? parameter : at::empty_like(parameter).copy_(parameter);
}
/// Brings the copies that without_gaps() made back into `parameters`.
inline void copy_back(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& dense) {
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].is_same(dense[p])) parameters[p].copy_(dense[p]);
  }
}

/// While it lives, operations skip autograd, which would look at each of many tensors; at its end the
/// parameters count as changed, so that a graph which still needs their old values says so.
class ChangedInPlace {
 public:
  explicit ChangedInPlace(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {}
  ChangedInPlace(const ChangedInPlace&) = delete;
  ~ChangedInPlace() {
    for (const at::Tensor& parameter : parameters_) parameter.unsafeGetTensorImpl()->bump_version();
  }

 private:
  const std::vector<at::Tensor>& parameters_;
  at::AutoDispatchBelowADInplaceOrView below_;
};

}  // namespace lockstep::detail
