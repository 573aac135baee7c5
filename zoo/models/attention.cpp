#include "lockstep/zoo/models/attention.h"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "lockstep/ops/dropout.h"

namespace lockstep::models {
namespace {

// LibTorch's kernel for CPUs reads a float32 mask of float64 queries as float64, and says nothing.
at::Tensor convert_bias(const at::Tensor& bias, at::ScalarType dtype) {
  // A mask's -1e30 would be an infinity in float16: NaN for a sequence of nothing but padding. The lowest number is
  // -65504; half of it leaves room for the score.
  constexpr double kLowestInHalf = -32752;
  return (dtype == at::kHalf ? at::clamp_min(bias, kLowestInHalf) : bias).to(dtype);
}

// LibTorch's fused kernel does not know dropout, and its fallback makes more passes than this.
at::Tensor attention_with_dropout(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& bias, bool causal, double p) {
  const int64_t batch = q.size(0), heads = q.size(1), length = k.size(2), head_size = q.size(3);
  const auto flat = [&](const at::Tensor& x) { return x.reshape({batch * heads, x.size(2), head_size}); };
  const double scale = 1 / std::sqrt(static_cast<double>(head_size));
  at::Tensor added;
  if (causal) {
    added = at::full({1, length, length}, -std::numeric_limits<float>::infinity(),
                     q.options().requires_grad(false))
                .triu(1);
  } else if (bias.defined()) {
    added = convert_bias(bias, q.scalar_type())
                .expand({batch, heads, 1, length})
                .reshape({batch * heads, 1, length});
  }
  const at::Tensor scores = at::baddbmm(added.defined() ? added : at::zeros({1, 1, 1}, q.options()), flat(q),
                                        flat(k).transpose(1, 2), added.defined() ? 1 : 0, scale);
  const at::Tensor weights = ops::dropout(at::softmax(scores, -1), p);
  return at::bmm(weights, flat(v)).view({batch, heads, q.size(2), head_size});
}

}  // namespace

at::Tensor split_heads(const at::Tensor& x, int64_t batch, int64_t heads) {
  return x.view({batch, x.size(0) / batch, heads, x.size(1) / heads}).transpose(1, 2);
}

at::Tensor dot_product_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& bias, bool causal, double p) {
  if (p > 0) return attention_with_dropout(q, k, v, bias, causal, p);
  const auto mask = bias.defined() ? std::optional(convert_bias(bias, q.scalar_type())) : std::nullopt;
  return at::scaled_dot_product_attention(q, k, v, mask, 0, causal);
}

}  // namespace lockstep::models
