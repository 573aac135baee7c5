#include "lockstep/optim/clip_grad.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>

#include "lockstep/optim/chunk_norm.h"

namespace lockstep {
namespace {

std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> grads;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) grads.push_back(parameter.grad().detach());
  }
  return grads;
}

double norm_of(const std::vector<at::Tensor>& grads) {
  std::vector<double> sums;
  std::vector<size_t> chunks;
  for (const auto& grad : grads) {
    const at::Tensor flat = detail::in_memory_order(grad);
    chunks.push_back(static_cast<size_t>(detail::norm_chunks(flat.numel())));
    sums.resize(sums.size() + chunks.back());
    detail::sum_squares(flat, sums.data() + sums.size() - chunks.back());
  }
  return detail::norm_of_chunks(sums, chunks);
}

}  // namespace

double grad_norm(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  return norm_of(gradients(parameters));
}

double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm) {
  const at::NoGradGuard no_grad;
  const auto grads = gradients(parameters);
  const double norm = norm_of(grads);
  const double scale = detail::clip_scale(norm, max_norm);
  if (detail::clips(scale) && !grads.empty()) at::_foreach_mul_(grads, scale);
  return norm;
}

}  // namespace lockstep
