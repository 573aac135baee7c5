#include "lockstep/models/bert_ops.h"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cmath>
#include <utility>

#include "lockstep/models/bert_config.h"
#include "lockstep/ops/embedding.h"
#include "lockstep/ops/linear.h"

namespace lockstep::models {
namespace {

using Activation = at::Tensor (*)(const at::Tensor&);

const std::array<std::pair<const char*, Activation>, 7> activations{{
    {"gelu", [](const at::Tensor& x) { return at::gelu(x, "none"); }},
    {"gelu_new", [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
    {"gelu_pytorch_tanh", [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
    {"relu", [](const at::Tensor& x) { return at::relu(x); }},
    {"silu", [](const at::Tensor& x) { return at::silu(x); }},
    {"swish", [](const at::Tensor& x) { return at::silu(x); }},
    {"tanh", [](const at::Tensor& x) { return at::tanh(x); }},
}};

Activation find_activation(const std::string& name) {
  for (const auto& [word, function] : activations) {
    if (name == word) return function;
  }
  return nullptr;
}

// [batch * length, width] -> [batch, heads, length, width / heads]
at::Tensor split_heads(const at::Tensor& x, int64_t batch, int64_t heads) {
  return x.view({batch, x.size(0) / batch, heads, x.size(1) / heads}).transpose(1, 2);
}

// LibTorch's fused kernel does not know dropout, and its fallback makes more passes than this.
at::Tensor attention_with_dropout(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& bias, double p) {
  const int64_t batch = q.size(0), heads = q.size(1), length = k.size(2), head_size = q.size(3);
  const auto flat = [&](const at::Tensor& x) { return x.reshape({batch * heads, x.size(2), head_size}); };
  const double scale = 1 / std::sqrt(static_cast<double>(head_size));
  const at::Tensor added = bias.defined()
                               ? bias.expand({batch, heads, 1, length}).reshape({batch * heads, 1, length})
                               : at::zeros({1, 1, 1}, q.options());
  const at::Tensor scores =
      at::baddbmm(added, flat(q), flat(k).transpose(1, 2), bias.defined() ? 1 : 0, scale);
  const at::Tensor weights = dropout(at::softmax(scores, -1), p);
  return at::bmm(weights, flat(v)).view({batch, heads, q.size(2), head_size});
}

}  // namespace

bool is_known_activation(const std::string& name) { return find_activation(name) != nullptr; }

at::Tensor linear_activation(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             const std::string& activation) {
  return find_activation(activation)(ops::linear(x, weight, bias));
}

at::Tensor dropout(const at::Tensor& x, double p) { return p > 0 ? at::dropout(x, p, true) : x; }

at::Tensor dropout_add_layer_norm(const at::Tensor& x, const at::Tensor& residual, double p,
                                  const at::Tensor& weight, const at::Tensor& bias, double eps) {
  return at::layer_norm(dropout(x, p) + residual, weight.sizes(), weight, bias, eps);
}

at::Tensor embedding_rows(const at::Tensor& table, const at::Tensor& ids, int64_t padding_id) {
  return ops::embedding(table, ids, padding_id);
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads,
                     const TokenLayout& layout, bool first_only, double p) {
  const auto grid = [&](const at::Tensor& x) {
    return split_heads(layout.rows.defined() ? place_rows(x, layout.rows, layout.batch * layout.length) : x,
                       layout.batch, heads);
  };
  const at::Tensor queries = first_only ? split_heads(q, layout.batch, heads) : grid(q);
  const at::Tensor keys = grid(k), values = grid(v);
  const std::optional<at::Tensor> mask = layout.bias.defined() ? std::optional(layout.bias) : std::nullopt;
  const at::Tensor mixed = p > 0 ? attention_with_dropout(queries, keys, values, layout.bias, p)
                                 : at::scaled_dot_product_attention(queries, keys, values, mask);
  const at::Tensor joined = mixed.transpose(1, 2).reshape({-1, q.size(1)});
  return first_only || !layout.rows.defined() ? joined : take_rows(joined, layout.rows);
}

}  // namespace lockstep::models
