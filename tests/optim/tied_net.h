// A language model in small: the output layer's weight is the embedding's.
#pragma once

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <memory>

namespace lockstep::testing {

/// tests/optim/optim_parity_test.py has the same. LibTorch's parameters() has 5 entries for its 4 tensors.
struct TiedNetImpl : torch::nn::Module {
  struct Decoder : torch::nn::Module {
    explicit Decoder(const at::Tensor& tied)
        : weight(register_parameter("weight", tied)),
          bias(register_parameter("bias", at::zeros({tied.size(0)}))) {}
    at::Tensor weight, bias;
  };

  TiedNetImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(11, 6));
    hidden = register_module("hidden", torch::nn::Linear(6, 6));
    decoder = register_module("decoder", std::make_shared<Decoder>(embedding->weight));
  }
  /// tokens: int64 [N]; the result: [N, 11].
  at::Tensor forward(const at::Tensor& tokens) {
    return at::linear(hidden(embedding(tokens)).tanh(), decoder->weight, decoder->bias);
  }
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& labels) {
    return at::cross_entropy_loss(forward(tokens), labels);
  }

  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear hidden{nullptr};
  std::shared_ptr<Decoder> decoder;
};
TORCH_MODULE(TiedNet);

}  // namespace lockstep::testing
