// Which positions of a padded batch are computed, and how rows of tokens go into and out of it.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::models {

/// A batch of sequences as rows of tokens, sequence after sequence. Where padding only follows tokens, or
/// lies between them, the rows leave it out; where a sequence begins with padding they are all positions,
/// because the pooler reads the first one.
struct TokenLayout {
  int64_t batch = 0;
  int64_t length = 0;
  int64_t tokens = 0;  ///< number of rows
  at::Tensor rows;     ///< int64 [tokens], position in [batch * length] of each; undefined: all of them
  at::Tensor first;    ///< int64 [batch], the row of each sequence's first position
  at::Tensor bias;     ///< float32 [batch, 1, 1, length], for dot_product_attention(); undefined: no padding
};

/// `attention_mask`: int64 [batch, length], 1 = token; undefined: no padding. `with_padding`: the rows are all positions.
TokenLayout make_token_layout(const at::Tensor& attention_mask, at::IntArrayRef sizes, at::Device device,
                              bool with_padding = false);

/// Rows `index` of `x`: [n, width] -> [index.size(0), width]. No index may stand twice. Differentiable.
at::Tensor take_rows(const at::Tensor& x, const at::Tensor& index);

/// The inverse: `x` as rows `index` of [n, width], zeros elsewhere. Differentiable.
at::Tensor place_rows(const at::Tensor& x, const at::Tensor& index, int64_t n);

}  // namespace lockstep::models
