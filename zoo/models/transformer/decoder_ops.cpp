#include "lockstep/zoo/models/transformer/decoder_ops.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/ops/std_layer_norm.h"
#include "lockstep/zoo/models/attention.h"

namespace lockstep::models {
namespace {

/// As many sums at a time as fill vector registers: compilers do not change the order of one.
constexpr int64_t kLanes = 16;

template <class Term>
float add_terms(int64_t size, const Term& term) {
  std::array<float, kLanes> sums{};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[static_cast<size_t>(lane)] += term(i + lane);
  }
  float sum = 0;
  for (const float lane : sums) sum += lane;
  for (; i < size; ++i) sum += term(i);
  return sum;
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.stride(-1) == 1;
}

/// One head of one row. `scores`: room for `count`.
void attend_one(const float* query, const float* keys, const float* values, const float* bias, int64_t count,
                int64_t size, float* scores, float* out) {
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  float most = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = scale * add_terms(size, [&](int64_t i) { return query[i] * keys[j * size + i]; });
    if (bias != nullptr) scores[j] += bias[j];
    most = std::max(most, scores[j]);
  }
  float sum = 0;
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = std::exp(scores[j] - most);
    sum += scores[j];
  }
  std::fill_n(out, size, 0.0F);
  for (int64_t j = 0; j < count; ++j) {
    const float share = scores[j] / sum;
    for (int64_t i = 0; i < size; ++i) out[i] += share * values[j * size + i];
  }
}

at::Tensor attend_by_libtorch(const at::Tensor& queries, const AttendedTokens& tokens) {
  const int64_t rows = queries.size(0), heads = queries.size(1), size = queries.size(2);
  const int64_t groups = tokens.keys.size(0);
  const at::Tensor grouped = queries.reshape({groups, rows / groups, heads, size}).transpose(1, 2);
  return dot_product_attention(grouped, tokens.keys.narrow(2, 0, tokens.count),
                               tokens.values.narrow(2, 0, tokens.count), tokens.bias, false, 0)
      .transpose(1, 2)
      .reshape({rows, heads * size});
}

}  // namespace

at::Tensor attend(const at::Tensor& queries, const AttendedTokens& tokens) {
  const int64_t rows = queries.size(0), heads = queries.size(1), size = queries.size(2);
  const bool has_plain_bias =
      !tokens.bias.defined() || (is_plain(tokens.bias) && tokens.bias.size(-1) == tokens.count);
  const bool has_plain_tokens = is_plain(tokens.keys) && tokens.keys.is_contiguous() &&
                                is_plain(tokens.values) && tokens.values.is_contiguous();
  if (!is_plain(queries) || queries.stride(1) != size || !has_plain_tokens || !has_plain_bias) {
    return attend_by_libtorch(queries, tokens);
  }
  const at::Tensor out = at::empty({rows, heads * size}, queries.options());
  const int64_t room = tokens.keys.size(2), in_group = rows / tokens.keys.size(0);
  const int64_t stride = queries.stride(0);
  const int64_t bias_stride = tokens.bias.defined() ? tokens.bias.stride(0) : 0;
  const auto* const query = queries.const_data_ptr<float>();
  const auto* const keys = tokens.keys.const_data_ptr<float>();
  const auto* const values = tokens.values.const_data_ptr<float>();
  const float* const bias = tokens.bias.defined() ? tokens.bias.const_data_ptr<float>() : nullptr;
  auto* const result = out.mutable_data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, tokens.count * size));
  at::parallel_for(0, rows * heads, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(static_cast<size_t>(tokens.count));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / heads, head = i % heads, group = row / in_group;
      const int64_t place = (group * heads + head) * room * size;
      attend_one(query + row * stride + head * size, keys + place, values + place,
                 bias != nullptr ? bias + group * bias_stride : nullptr, tokens.count, size, scores.data(),
                 result + i * size);
    }
  });
  return out;
}

at::Tensor infer_std_layer_norm(const at::Tensor& x, const at::Tensor& alpha, const at::Tensor& bias,
                                double eps) {
  if (!is_plain(x) || !x.is_contiguous() || !is_plain(alpha) || !is_plain(bias)) {
    return ops::std_layer_norm(x, alpha, bias, eps);
  }
  const at::Tensor out = at::empty_like(x);
  const int64_t rows = x.size(0), width = x.size(1);
  const auto* const scale = alpha.const_data_ptr<float>();
  const auto* const shift = bias.const_data_ptr<float>();
  for (int64_t r = 0; r < rows; ++r) {
    const float* const from = x.const_data_ptr<float>() + r * width;
    float* const to = out.mutable_data_ptr<float>() + r * width;
    const float mean = add_terms(width, [&](int64_t i) { return from[i]; }) / static_cast<float>(width);
    const float squares = add_terms(width, [&](int64_t i) { return (from[i] - mean) * (from[i] - mean); });
    const float deviation = std::sqrt(squares / static_cast<float>(width - 1));
    const float factor = 1 / (deviation + static_cast<float>(eps));
    for (int64_t i = 0; i < width; ++i) to[i] = (from[i] - mean) * factor * scale[i] + shift[i];
  }
  return out;
}

}  // namespace lockstep::models
