#include "lockstep/zoo/models/bert_ops.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>

#include <array>
#include <utility>

#include "lockstep/ops/dropout.h"
#include "lockstep/ops/embedding.h"
#include "lockstep/ops/linear.h"
#include "lockstep/zoo/models/bert_config.h"

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

}  // namespace

bool is_known_activation(const std::string& name) { return find_activation(name) != nullptr; }

at::Tensor linear_activation(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             const std::string& activation) {
  return find_activation(activation)(ops::linear(x, weight, bias));
}

at::Tensor dropout_add_layer_norm(const at::Tensor& x, const at::Tensor& residual, double p,
                                  const at::Tensor& weight, const at::Tensor& bias, double eps) {
  return at::layer_norm(ops::dropout_add(x, p, residual), weight.sizes(), weight, bias, eps);
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
  const at::Tensor mixed = dot_product_attention(queries, keys, values, layout.bias, false, p);
  const at::Tensor joined = mixed.transpose(1, 2).reshape({-1, q.size(1)});
  return first_only || !layout.rows.defined() ? joined : take_rows(joined, layout.rows);
}

}  // namespace lockstep::models
