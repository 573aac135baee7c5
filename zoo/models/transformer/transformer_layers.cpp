#include "lockstep/zoo/models/transformer/transformer_layers.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <string>

#include "lockstep/ops/dropout.h"
#include "lockstep/ops/linear.h"
#include "lockstep/ops/std_layer_norm.h"
#include "lockstep/zoo/models/attention.h"

namespace lockstep::models::transformer {
namespace {

using torch::nn::Module;

constexpr double kNormEps = 1e-6;

std::shared_ptr<Module> add_container(Module& parent, const std::string& name) {
  return parent.register_module(name, std::make_shared<Module>(name));
}

std::vector<std::shared_ptr<LayerNormalization>> add_norms(Module& parent, int count, int64_t width) {
  std::vector<std::shared_ptr<LayerNormalization>> norms;
  const auto connections = add_container(parent, "residual_connections");
  for (int i = 0; i < count; ++i) {
    const auto connection = add_container(*connections, std::to_string(i));
    norms.push_back(connection->register_module("norm", std::make_shared<LayerNormalization>(width)));
  }
  return norms;
}

at::Tensor grid(const at::Tensor& x, const TokenLayout& layout, int64_t heads) {
  const at::Tensor all = layout.rows.defined() ? place_rows(x, layout.rows, layout.batch * layout.length) : x;
  return split_heads(all, layout.batch, heads);
}

}  // namespace

LinearWeights::LinearWeights(int64_t in, int64_t out, Bias has_bias)
    : weight(register_parameter("weight", at::empty({out, in}))),
      bias(has_bias == Bias::with ? register_parameter("bias", at::empty({out})) : at::Tensor()) {}

at::Tensor LinearWeights::operator()(const at::Tensor& x) const { return ops::linear(x, weight, bias); }

LayerNormalization::LayerNormalization(int64_t width)
    : alpha(register_parameter("alpha", at::ones({width}))),
      bias(register_parameter("bias", at::zeros({width}))) {}

at::Tensor LayerNormalization::operator()(const at::Tensor& x) const {
  return ops::std_layer_norm(x, alpha, bias, kNormEps);
}

MultiHeadAttention::MultiHeadAttention(const TransformerConfig& config) {
  const auto add = [&](const char* name) {
    return register_module(
        name, std::make_shared<LinearWeights>(config.d_model, config.d_model, LinearWeights::Bias::without));
  };
  w_q = add("w_q");
  w_k = add("w_k");
  w_v = add("w_v");
  w_o = add("w_o");
}

at::Tensor MultiHeadAttention::operator()(const at::Tensor& x, const TokenLayout& from,
                                          const at::Tensor& memory, const TokenLayout& to, bool causal,
                                          int64_t heads, double dropout) const {
  // Padding follows the tokens, so a causal query never sees it.
  const at::Tensor mixed = dot_product_attention(
      grid((*w_q)(x), from, heads), grid((*w_k)(memory), to, heads), grid((*w_v)(memory), to, heads),
      causal ? at::Tensor() : to.bias, causal, dropout);
  const at::Tensor joined = mixed.transpose(1, 2).reshape({-1, x.size(1)});
  return (*w_o)(from.rows.defined() ? take_rows(joined, from.rows) : joined);
}

FeedForward::FeedForward(const TransformerConfig& config) {
  linear_1 = register_module(
      "linear_1", std::make_shared<LinearWeights>(config.d_model, config.d_ff, LinearWeights::Bias::with));
  linear_2 = register_module(
      "linear_2", std::make_shared<LinearWeights>(config.d_ff, config.d_model, LinearWeights::Bias::with));
}

at::Tensor FeedForward::operator()(const at::Tensor& x, double p) const {
  return (*linear_2)(ops::dropout(at::relu((*linear_1)(x)), p));
}

EncoderLayer::EncoderLayer(const TransformerConfig& config) {
  self_attention = register_module("self_attention_block", std::make_shared<MultiHeadAttention>(config));
  feed_forward = register_module("feed_forward_block", std::make_shared<FeedForward>(config));
  norms = add_norms(*this, 2, config.d_model);
}

at::Tensor EncoderLayer::operator()(const at::Tensor& input, const TokenLayout& layout,
                                    const TransformerConfig& config, double p) const {
  at::Tensor normed = (*norms[0])(input);
  const at::Tensor x = ops::dropout_add(
      (*self_attention)(normed, layout, normed, layout, false, config.num_heads, p), p, input);
  return ops::dropout_add((*feed_forward)((*norms[1])(x), p), p, x);
}

DecoderLayer::DecoderLayer(const TransformerConfig& config) {
  self_attention = register_module("self_attention_block", std::make_shared<MultiHeadAttention>(config));
  cross_attention = register_module("cross_attention_block", std::make_shared<MultiHeadAttention>(config));
  feed_forward = register_module("feed_forward_block", std::make_shared<FeedForward>(config));
  norms = add_norms(*this, 3, config.d_model);
}

at::Tensor DecoderLayer::operator()(const at::Tensor& input, const TokenLayout& layout,
                                    const at::Tensor& memory, const TokenLayout& memory_layout,
                                    const TransformerConfig& config, double p) const {
  const int64_t heads = config.num_heads;
  at::Tensor normed = (*norms[0])(input);
  at::Tensor x =
      ops::dropout_add((*self_attention)(normed, layout, normed, layout, true, heads, p), p, input);
  x = ops::dropout_add((*cross_attention)((*norms[1])(x), layout, memory, memory_layout, false, heads, p), p,
                       x);
  return ops::dropout_add((*feed_forward)((*norms[2])(x), p), p, x);
}

template <class Layer>
Stack<Layer>::Stack(const TransformerConfig& config) {
  const auto list = add_container(*this, "layers");
  for (int64_t i = 0; i < config.num_layers; ++i) {
    layers.push_back(list->register_module(std::to_string(i), std::make_shared<Layer>(config)));
  }
  norm = register_module("norm", std::make_shared<LayerNormalization>(config.d_model));
}
template struct Stack<EncoderLayer>;
template struct Stack<DecoderLayer>;

at::Tensor sinusoids(int64_t length, int64_t d_model) {
  const at::Tensor position = at::arange(0, length, at::kFloat).unsqueeze(1);
  const at::Tensor divisor =
      at::exp(at::arange(0, d_model, 2).to(at::kFloat) * (-std::log(10000.0) / static_cast<double>(d_model)));
  at::Tensor table = at::zeros({1, length, d_model});
  const at::Tensor angles = position * divisor;
  table[0].slice(1, 0, d_model, 2).copy_(at::sin(angles));
  table[0].slice(1, 1, d_model, 2).copy_(at::cos(angles));
  return table;
}

}  // namespace lockstep::models::transformer
