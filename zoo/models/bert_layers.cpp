#include "lockstep/zoo/models/bert_layers.h"

#include <ATen/ops/any.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/ops/dropout.h"
#include "lockstep/ops/linear.h"
#include "lockstep/zoo/models/bert_ops.h"

namespace lockstep::models {
namespace {

using torch::nn::Module;

std::shared_ptr<WeightAndBias> add_linear(Module& parent, const char* name, int64_t in, int64_t out) {
  return parent.register_module(name, std::make_shared<WeightAndBias>(at::IntArrayRef{out, in}, out));
}

std::shared_ptr<WeightAndBias> add_layer_norm(Module& parent, int64_t size) {
  return parent.register_module("LayerNorm", std::make_shared<WeightAndBias>(at::IntArrayRef{size}, size));
}

// A module that only gives its children a longer name.
std::shared_ptr<Module> add_scope(Module& parent, const std::string& name) {
  return parent.register_module(name, std::make_shared<Module>(name));
}

at::Tensor add_table(Module& parent, const char* name, int64_t rows, int64_t width) {
  return add_scope(parent, name)->register_parameter("weight", at::empty({rows, width}));
}

TokenLayout make_layout(const BertBatch& batch, const BertConfig& config, bool with_padding) {
  const at::Tensor& ids = batch.input_ids;
  if (!ids.defined() || ids.dim() != 2) throw ValueError("input_ids must be [batch, length]");
  if (ids.size(1) < 1 || ids.size(1) > config.max_position_embeddings) {
    throw ValueError(
        fmt::format("sequences of {} tokens, the model has positions for 1 to {}: lower the "
                    "maximum sequence length",
                    ids.size(1), config.max_position_embeddings));
  }
  return make_token_layout(batch.attention_mask, ids.sizes(), ids.device(), with_padding);
}

}  // namespace

WeightAndBias::WeightAndBias(at::IntArrayRef weight_shape, int64_t bias_size)
    : weight(register_parameter("weight", at::empty(weight_shape))),
      bias(register_parameter("bias", at::empty({bias_size}))) {}

at::Tensor linear(const WeightAndBias& module, const at::Tensor& x) {
  return ops::linear(x, module.weight, module.bias);
}

BertEmbeddingsImpl::BertEmbeddingsImpl(const BertConfig& config)
    : word_(add_table(*this, "word_embeddings", config.vocab_size, config.hidden_size)),
      position_(add_table(*this, "position_embeddings", config.max_position_embeddings, config.hidden_size)),
      token_type_(add_table(*this, "token_type_embeddings", config.type_vocab_size, config.hidden_size)),
      layer_norm_(add_layer_norm(*this, config.hidden_size)) {}

at::Tensor BertEmbeddingsImpl::forward(const BertBatch& batch, const TokenLayout& layout,
                                       const BertConfig& config) {
  const auto of_rows = [&](const at::Tensor& ids) {
    const at::Tensor flat = ids.reshape(-1);
    return layout.rows.defined() ? flat.index_select(0, layout.rows) : flat;
  };
  at::Tensor x = embedding_rows(word_, of_rows(batch.input_ids), config.pad_token_id);
  // Most batches have one token type: then its row is added to the few positions, not to every token.
  const bool one_type = !batch.token_type_ids.defined() || !at::any(batch.token_type_ids).item<bool>();
  if (!one_type) x = x + embedding_rows(token_type_, of_rows(batch.token_type_ids), -1);
  at::Tensor positions = position_.narrow(0, 0, layout.length);
  if (one_type) positions = positions + token_type_.narrow(0, 0, 1);
  if (layout.rows.defined()) {
    x = x + embedding_rows(positions, layout.rows.remainder(layout.length), -1);
  } else {
    x = (x.view({layout.batch, layout.length, -1}) + positions).view({layout.tokens, -1});
  }
  x = at::layer_norm(x, {config.hidden_size}, layer_norm_->weight, layer_norm_->bias, config.layer_norm_eps);
  return ops::dropout(x, is_training() ? config.hidden_dropout_prob : 0);
}

BertLayerImpl::BertLayerImpl(const BertConfig& config) {
  const int64_t hidden = config.hidden_size;
  const auto attention = add_scope(*this, "attention");
  const auto self = add_scope(*attention, "self");
  query_ = add_linear(*self, "query", hidden, hidden);
  key_ = add_linear(*self, "key", hidden, hidden);
  value_ = add_linear(*self, "value", hidden, hidden);
  const auto attention_output = add_scope(*attention, "output");
  attention_output_ = add_linear(*attention_output, "dense", hidden, hidden);
  attention_norm_ = add_layer_norm(*attention_output, hidden);
  intermediate_ = add_linear(*add_scope(*this, "intermediate"), "dense", hidden, config.intermediate_size);
  const auto output = add_scope(*this, "output");
  output_ = add_linear(*output, "dense", config.intermediate_size, hidden);
  output_norm_ = add_layer_norm(*output, hidden);
}

at::Tensor BertLayerImpl::forward(const at::Tensor& hidden, const TokenLayout& layout,
                                  const BertConfig& config, bool first_only) {
  const double hidden_p = is_training() ? config.hidden_dropout_prob : 0;
  const double attention_p = is_training() ? config.attention_probs_dropout_prob : 0;
  const at::Tensor input = first_only ? take_rows(hidden, layout.first) : hidden;
  const at::Tensor mixed = attention(linear(*query_, input), linear(*key_, hidden), linear(*value_, hidden),
                                     config.num_attention_heads, layout, first_only, attention_p);
  const at::Tensor attended =
      dropout_add_layer_norm(linear(*attention_output_, mixed), input, hidden_p, attention_norm_->weight,
                             attention_norm_->bias, config.layer_norm_eps);
  const at::Tensor inner =
      linear_activation(attended, intermediate_->weight, intermediate_->bias, config.hidden_act);
  return dropout_add_layer_norm(linear(*output_, inner), attended, hidden_p, output_norm_->weight,
                                output_norm_->bias, config.layer_norm_eps);
}

BertModelImpl::BertModelImpl(const BertConfig& config, bool has_pooler) {
  embeddings_ = register_module("embeddings", std::make_shared<BertEmbeddingsImpl>(config));
  const auto layers = add_scope(*add_scope(*this, "encoder"), "layer");
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(layers->register_module(std::to_string(i), std::make_shared<BertLayerImpl>(config)));
  }
  if (has_pooler)
    pooler_ = add_linear(*add_scope(*this, "pooler"), "dense", config.hidden_size, config.hidden_size);
}

at::Tensor BertModelImpl::forward(const BertBatch& batch, const BertConfig& config) {
  const TokenLayout layout = make_layout(batch, config, /*with_padding=*/false);
  at::Tensor x = run_layers(batch, layout, config, /*first_only=*/true);
  if (layers_.empty()) x = take_rows(x, layout.first);
  return at::tanh(linear(*pooler_, x));
}

EncodedTokens BertModelImpl::encode(const BertBatch& batch, const BertConfig& config, bool with_padding) {
  TokenLayout layout = make_layout(batch, config, with_padding);
  at::Tensor rows = run_layers(batch, layout, config, /*first_only=*/false);
  return {.rows = std::move(rows), .layout = std::move(layout)};
}

at::Tensor BertModelImpl::run_layers(const BertBatch& batch, const TokenLayout& layout,
                                     const BertConfig& config, bool first_only) {
  at::Tensor x = embeddings_->forward(batch, layout, config);
  for (const auto& layer : layers_) {
    const bool is_last = first_only && layer == layers_.back();
    const auto run = [&layer = *layer, layout, config, is_last](const at::Tensor& hidden) {
      return layer.forward(hidden, layout, config, is_last);
    };
    x = gradient_checkpointing && is_training() ? activation_checkpoint(run, x) : run(x);
  }
  return x;
}

}  // namespace lockstep::models
