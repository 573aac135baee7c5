#include "lockstep/zoo/models/transformer/transformer.h"

#include <ATen/ops/index_select.h>
#include <fmt/format.h>
#include <torch/nn/init.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/module_file.h"
#include "lockstep/ops/dropout.h"
#include "lockstep/ops/embedding.h"
#include "lockstep/zoo/models/attention.h"
#include "lockstep/zoo/models/model_directory.h"
#include "lockstep/zoo/models/transformer/transformer_layers.h"

namespace lockstep::models {
namespace {

using namespace transformer;

// Which positions hold tokens. Throws for what the arithmetic below cannot work with.
TokenLayout make_layout(const at::Tensor& ids, const char* side, int64_t vocab_size,
                        const TransformerConfig& config) {
  if (!ids.defined() || ids.dim() != 2 || ids.scalar_type() != at::kLong) {
    throw ValueError(fmt::format("{} ids must be int64 [batch, length]", side));
  }
  const int64_t length = ids.size(1);
  const at::Tensor here = ids.to(at::kCPU).contiguous();
  const auto* id = here.const_data_ptr<int64_t>();
  bool padded = false;
  for (int64_t row = 0; row < ids.size(0); ++row, id += length) {
    int64_t tokens = 0;
    while (tokens < length && id[tokens] != config.pad_token_id) ++tokens;
    if (tokens == 0) throw ValueError(fmt::format("row {} of the {} ids has no token", row, side));
    if (tokens > config.seq_len) {
      throw ValueError(fmt::format("row {} of the {} ids has {} tokens; the model has {} positions (seq_len)",
                                   row, side, tokens, config.seq_len));
    }
    padded |= tokens < length;
    for (int64_t i = 0; i < length; ++i) {
      if (i >= tokens && id[i] != config.pad_token_id)
        throw ValueError(fmt::format("row {} of the {} ids has padding before a token", row, side));
      if (id[i] < 0 || (i < tokens && id[i] >= vocab_size)) {
        throw ValueError(fmt::format("row {} of the {} ids holds {}; the model's vocabulary has {} entries",
                                     row, side, id[i], vocab_size));
      }
    }
  }
  return make_token_layout(padded ? ids.ne(config.pad_token_id).to(at::kLong) : at::Tensor(), ids.sizes(),
                           ids.device());
}

void initialize(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (auto& item : module.named_parameters()) {
    if (item.value().dim() > 1) torch::nn::init::xavier_uniform_(item.value());
  }
  module.apply([](torch::nn::Module& part) {
    auto* const linear = dynamic_cast<LinearWeights*>(&part);
    if (linear == nullptr || !linear->bias.defined()) return;
    const double bound = 1 / std::sqrt(static_cast<double>(linear->weight.size(1)));
    linear->bias.uniform_(-bound, bound);
  });
}

}  // namespace

TransformerImpl::TransformerImpl(TransformerConfig config) : config_(config) {
  config_.check();
  parts_.encoder = register_module("encoder", std::make_shared<Stack<EncoderLayer>>(config_));
  parts_.decoder = register_module("decoder", std::make_shared<Stack<DecoderLayer>>(config_));
  const auto embedding = [&](const char* name, int64_t rows) {
    const auto scope = register_module(name, std::make_shared<torch::nn::Module>(name));
    const auto inner = scope->register_module("embedding", std::make_shared<torch::nn::Module>("embedding"));
    return inner->register_parameter("weight", at::empty({rows, config_.d_model}));
  };
  parts_.source_embedding = embedding("src_embed", config_.source_vocab_size);
  parts_.target_embedding = embedding("tgt_embed", config_.target_vocab_size);
  const auto positions = [&](const char* name) {
    const auto scope = register_module(name, std::make_shared<torch::nn::Module>(name));
    return scope->register_buffer("pe", sinusoids(config_.seq_len, config_.d_model));
  };
  parts_.source_positions = positions("src_pos");
  parts_.target_positions = positions("tgt_pos");
  const auto projection =
      register_module("projection_layer", std::make_shared<torch::nn::Module>("projection"));
  parts_.projection = projection->register_module(
      "proj", std::make_shared<LinearWeights>(config_.d_model, config_.target_vocab_size,
                                              transformer::LinearWeights::Bias::with));
  initialize(*this);
}

double TransformerImpl::dropout_now() const { return is_training() ? config_.dropout : 0; }

at::Tensor TransformerImpl::embed(const at::Tensor& ids, const TokenLayout& layout, const at::Tensor& table,
                                  const at::Tensor& positions) const {
  const double scale = std::sqrt(static_cast<double>(config_.d_model));
  const at::Tensor flat = ids.reshape(-1);
  at::Tensor x;
  if (layout.rows.defined()) {
    x = ops::embedding(table, flat.index_select(0, layout.rows)) * scale +
        positions[0].index_select(0, layout.rows.remainder(layout.length));
  } else {
    x = ops::embedding(table, flat) * scale;
    x = (x.view({layout.batch, layout.length, -1}) + positions.narrow(1, 0, layout.length))
            .view({layout.tokens, -1});
  }
  return ops::dropout(x, dropout_now());
}

EncodedSource TransformerImpl::encode(const at::Tensor& source_ids) {
  TokenLayout layout = make_layout(source_ids, "source", config_.source_vocab_size, config_);
  at::Tensor x = embed(source_ids, layout, parts_.source_embedding, parts_.source_positions);
  for (const auto& layer : parts_.encoder->layers) x = (*layer)(x, layout, config_, dropout_now());
  return {.rows = (*parts_.encoder->norm)(x), .layout = std::move(layout)};
}

at::Tensor TransformerImpl::decode(const at::Tensor& target_ids, const EncodedSource& source) {
  if (target_ids.defined() && target_ids.dim() == 2 && target_ids.size(0) != source.layout.batch) {
    throw ValueError(
        fmt::format("{} target sentences for {} source sentences", target_ids.size(0), source.layout.batch));
  }
  const TokenLayout layout = make_layout(target_ids, "target", config_.target_vocab_size, config_);
  at::Tensor x = embed(target_ids, layout, parts_.target_embedding, parts_.target_positions);
  for (const auto& layer : parts_.decoder->layers) {
    x = (*layer)(x, layout, source.rows, source.layout, config_, dropout_now());
  }
  return (*parts_.projection)((*parts_.decoder->norm)(x));
}

at::Tensor TransformerImpl::forward(const TransformerBatch& batch) {
  return decode(batch.target_ids, encode(batch.source_ids));
}

Transformer load_transformer(const std::filesystem::path& directory) {
  check_model_directory(directory);
  Transformer model(TransformerConfig::from_file(directory / "config.json"));
  load_module(*model, directory / "model.safetensors");
  return model;
}

}  // namespace lockstep::models
