// The encoder of BERT. Modules carry Hugging Face's names; what they compute is in bert_ops.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/activation_checkpoint.h"
#include "lockstep/zoo/models/bert.h"
#include "lockstep/zoo/models/token_layout.h"

namespace lockstep::models {

/// A weight [out, in] and a bias [out], or, for LayerNorm, both [out]. Not initialized.
struct WeightAndBias : torch::nn::Module {
  WeightAndBias(at::IntArrayRef weight_shape, int64_t bias_size);
  at::Tensor weight;
  at::Tensor bias;
};

/// x W^T + b
at::Tensor linear(const WeightAndBias& module, const at::Tensor& x);

class BertEmbeddingsImpl : public torch::nn::Module {
 public:
  explicit BertEmbeddingsImpl(const BertConfig& config);
  /// float [layout.tokens, hidden]
  at::Tensor forward(const BertBatch& batch, const TokenLayout& layout, const BertConfig& config);

 private:
  at::Tensor word_;
  at::Tensor position_;
  at::Tensor token_type_;
  std::shared_ptr<WeightAndBias> layer_norm_;
};

class BertLayerImpl : public torch::nn::Module {
 public:
  explicit BertLayerImpl(const BertConfig& config);
  /// [layout.tokens, hidden] -> the same, or, with `first_only`, [layout.batch, hidden]: what follows from
  /// each sequence's first position, the only one that a classifier reads after the last layer.
  at::Tensor forward(const at::Tensor& hidden, const TokenLayout& layout, const BertConfig& config,
                     bool first_only);

 private:
  std::shared_ptr<WeightAndBias> query_, key_, value_;
  std::shared_ptr<WeightAndBias> attention_output_, attention_norm_;
  std::shared_ptr<WeightAndBias> intermediate_;
  std::shared_ptr<WeightAndBias> output_, output_norm_;
};

/// What the encoder makes of a batch.
struct EncodedTokens {
  at::Tensor rows;  ///< [layout.tokens, hidden]
  TokenLayout layout;
};

class BertModelImpl : public torch::nn::Module, public GradientCheckpointing {
 public:
  BertModelImpl(const BertConfig& config, bool has_pooler);
  /// The pooled first position, float [batch, hidden]; of a model with a pooler.
  at::Tensor forward(const BertBatch& batch, const BertConfig& config);
  /// All positions. `with_padding`: padding too.
  EncodedTokens encode(const BertBatch& batch, const BertConfig& config, bool with_padding);

 private:
  at::Tensor run_layers(const BertBatch& batch, const TokenLayout& layout, const BertConfig& config,
                        bool first_only);
  std::shared_ptr<BertEmbeddingsImpl> embeddings_;
  std::vector<std::shared_ptr<BertLayerImpl>> layers_;
  std::shared_ptr<WeightAndBias> pooler_;  // null: none
};

}  // namespace lockstep::models
