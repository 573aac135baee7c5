#include "lockstep/optim/clip_grad.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/dot.h>

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> grads;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) grads.push_back(parameter.grad().detach());
  }
  return grads;
}

// Short pieces are added in single precision, as fast as memory delivers them, and the pieces in double: the
// error does not grow with the size of an embedding table.
double sum_of_squares(const at::Tensor& grad) {
  constexpr int64_t piece = 1 << 16;
  const at::Tensor flat = grad.reshape(-1);
  double sum = 0;
  for (int64_t begin = 0; begin < flat.numel(); begin += piece) {
    at::Tensor part = flat.narrow(0, begin, std::min(piece, flat.numel() - begin));
    if (part.scalar_type() != at::kDouble) part = part.to(at::kFloat);
    sum += at::dot(part, part).item<double>();
  }
  return sum;
}

double norm_of(const std::vector<at::Tensor>& grads) {
  double sum = 0;
  for (const auto& grad : grads) sum += sum_of_squares(grad);
  return std::sqrt(sum);
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
  const double scale = max_norm / (norm + 1e-6);
  // Written so that NaN scales too: a broken step must not look like a clipped one.
  if (!(scale >= 1) && !grads.empty()) at::_foreach_mul_(grads, scale);
  return norm;
}

}  // namespace lockstep
