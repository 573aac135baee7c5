// The operations that BERT is made of, each at one place, so that a faster kernel can take its place.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/zoo/models/attention.h"
#include "lockstep/zoo/models/token_layout.h"

namespace lockstep::models {

/// x W^T + b, then the activation: [n, in] -> [n, out].
at::Tensor linear_activation(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             const std::string& activation);

/// LayerNorm(dropout(x) + residual) over the last dimension.
at::Tensor dropout_add_layer_norm(const at::Tensor& x, const at::Tensor& residual, double p,
                                  const at::Tensor& weight, const at::Tensor& bias, double eps);

/// Rows of the table, whose row `padding_id` (negative: none) takes no gradient.
at::Tensor embedding_rows(const at::Tensor& table, const at::Tensor& ids, int64_t padding_id);

/// Scaled dot-product attention of `heads` heads with dropout p on its weights. k and v: [layout.tokens,
/// width]. q: the same, or, with `first_only`, [layout.batch, width], the queries of each sequence's first
/// position. Returns the shape of q.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads,
                     const TokenLayout& layout, bool first_only, double p);

}  // namespace lockstep::models
