#include "lockstep/optim/clip_grad.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>

#include <cmath>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/optim/memory/chunk_norm.h"
#include "lockstep/parallel/parameters.h"

namespace lockstep {
namespace {

std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> grads;
  for (const auto& parameter : detail::each_tensor_once(parameters)) {
    if (!parameter.grad().defined()) continue;
    if (parameter.grad().is_sparse()) {
      // The norm is that of the sums of equal rows.
      const at::Tensor coalesced = parameter.grad().coalesce();
      parameter.mutable_grad() = coalesced;
      grads.push_back(coalesced._values());
      continue;
    }
    // Neither the norm nor a real factor tells a tensor from its conjugate, which the kernels refuse.
    const at::Tensor grad = parameter.grad().detach();
    grads.push_back(grad.is_conj() ? grad.conj() : grad);
  }
  return grads;
}

double compute_norm(const std::vector<at::Tensor>& grads, double norm_type) {
  std::vector<double> sums;
  std::vector<size_t> chunks;
  std::vector<at::Tensor> elsewhere;  // what the host cannot read
  for (const auto& grad : grads) {
    if (!grad.is_cpu()) {
      if (grad.numel() > 0) elsewhere.push_back(grad);
      continue;
    }
    const at::Tensor flat = detail::in_memory_order(grad);
    chunks.push_back(static_cast<size_t>(detail::norm_chunks(flat.numel())));
    sums.resize(sums.size() + chunks.back());
    detail::sum_powers(flat, norm_type, sums.data() + sums.size() - chunks.back());
  }
  for (const double sum : detail::sum_powers_on_device(elsewhere, norm_type)) {
    sums.push_back(sum);
    chunks.push_back(1);
  }
  return detail::norm_of_chunks(sums, chunks, norm_type);
}

}  // namespace

double grad_norm(const std::vector<at::Tensor>& parameters, double norm_type) {
  const at::NoGradGuard no_grad;
  return compute_norm(gradients(parameters), norm_type);
}

double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                       bool error_if_nonfinite) {
  const at::NoGradGuard no_grad;
  const auto grads = gradients(parameters);
  const double norm = compute_norm(grads, norm_type);
  detail::check_norm(norm, error_if_nonfinite);
  const double scale = detail::clip_scale(norm, max_norm);
  if (detail::clips(scale) && !grads.empty()) at::_foreach_mul_(grads, scale);
  return norm;
}

double scale_and_clip_grad_norm_(const std::vector<at::Tensor>& parameters, double scale, double max_norm) {
  const at::NoGradGuard no_grad;
  const auto grads = gradients(parameters);
  const double norm = std::abs(scale) * compute_norm(grads, 2);
  if (!std::isfinite(norm)) return norm;
  const double clip = max_norm > 0 ? detail::clip_scale(norm, max_norm) : 1;
  const double factor = detail::clips(clip) ? scale * clip : scale;
  if (factor != 1 && !grads.empty()) at::_foreach_mul_(grads, factor);
  return norm;
}

}  // namespace lockstep
