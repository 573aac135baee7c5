// What a translation transformer is made of: parameters under the names of the original program.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "lockstep/zoo/models/token_layout.h"
#include "lockstep/zoo/models/transformer/transformer_config.h"

namespace lockstep::models::transformer {

/// [out, in] and, unless there is none, [out].
struct LinearWeights : torch::nn::Module {
  enum class Bias : uint8_t { with, without };
  LinearWeights(int64_t in, int64_t out, Bias has_bias);
  at::Tensor weight, bias;
  /// [rows, in] -> [rows, out]
  at::Tensor operator()(const at::Tensor& x) const;
};

/// alpha (x - mean) / (std + 1e-6) + bias
struct LayerNormalization : torch::nn::Module {
  explicit LayerNormalization(int64_t width);
  at::Tensor alpha, bias;
  at::Tensor operator()(const at::Tensor& x) const;
};

struct MultiHeadAttention : torch::nn::Module {
  explicit MultiHeadAttention(const TransformerConfig& config);
  std::shared_ptr<LinearWeights> w_q, w_k, w_v, w_o;
  /// Rows of tokens [from.tokens, d_model] that look at the rows `memory` [to.tokens, d_model].
  at::Tensor operator()(const at::Tensor& x, const TokenLayout& from, const at::Tensor& memory,
                        const TokenLayout& to, bool causal, int64_t heads, double dropout) const;
};

struct FeedForward : torch::nn::Module {
  explicit FeedForward(const TransformerConfig& config);
  std::shared_ptr<LinearWeights> linear_1, linear_2;
  at::Tensor operator()(const at::Tensor& x, double dropout) const;
};

struct EncoderLayer : torch::nn::Module {
  explicit EncoderLayer(const TransformerConfig& config);
  std::shared_ptr<MultiHeadAttention> self_attention;
  std::shared_ptr<FeedForward> feed_forward;
  std::vector<std::shared_ptr<LayerNormalization>> norms;  ///< before either of them
  at::Tensor operator()(const at::Tensor& x, const TokenLayout& layout, const TransformerConfig& config,
                        double dropout) const;
};

struct DecoderLayer : torch::nn::Module {
  explicit DecoderLayer(const TransformerConfig& config);
  std::shared_ptr<MultiHeadAttention> self_attention, cross_attention;
  std::shared_ptr<FeedForward> feed_forward;
  std::vector<std::shared_ptr<LayerNormalization>> norms;  ///< before each of them
  at::Tensor operator()(const at::Tensor& x, const TokenLayout& layout, const at::Tensor& memory,
                        const TokenLayout& memory_layout, const TransformerConfig& config,
                        double dropout) const;
};

/// Layers and the normalization that follows them.
template <class Layer>
struct Stack : torch::nn::Module {
  explicit Stack(const TransformerConfig& config);
  std::vector<std::shared_ptr<Layer>> layers;
  std::shared_ptr<LayerNormalization> norm;
};

/// Sines and cosines of positions, [1, length, d_model].
at::Tensor sinusoids(int64_t length, int64_t d_model);

}  // namespace lockstep::models::transformer
