// Attention, and what goes with it in every transformer.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::models {

/// [batch * length, width] -> [batch, heads, length, width / heads], a view.
at::Tensor split_heads(const at::Tensor& x, int64_t batch, int64_t heads);

/// softmax(q k^T / sqrt(size) + bias) v with dropout p on the weights: [batch, heads, queries, size] and twice
/// [batch, heads, keys, size] -> [batch, heads, queries, size]. `bias`: [batch, 1, 1, keys] of any
/// floating dtype, converted to that of q, or undefined. `causal` (without a bias, as many queries as keys): query i sees
/// the keys 0 to i.
at::Tensor dot_product_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& bias, bool causal, double p);

}  // namespace lockstep::models
