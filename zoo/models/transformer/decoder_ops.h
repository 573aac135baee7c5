// What a decoder computes for one token of each row, where calls of LibTorch take longer than the work in them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::models {

/// What queries look at. Row r of the queries looks at row r / (rows / keys.size(0)).
struct AttendedTokens {
  at::Tensor keys, values;  ///< [rows, heads, room, head_size], contiguous
  int64_t count = 0;        ///< so many of `room`, from the first on
  at::Tensor bias{};        ///< float32 [rows, 1, 1, count], added to the scores; undefined: none
};

/// Scaled dot-product attention with one query per row. queries: [rows, heads, head_size], of which rows may lie apart.
/// Returns [rows, heads * head_size]. float on the CPU by loops of its own, anything else by LibTorch.
at::Tensor attend(const at::Tensor& queries, const AttendedTokens& tokens);

/// std_layer_norm() of x, [rows, width], without gradients.
at::Tensor infer_std_layer_norm(const at::Tensor& x, const at::Tensor& alpha, const at::Tensor& bias,
                                double eps);

}  // namespace lockstep::models
