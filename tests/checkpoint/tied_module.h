// A module with what a file of a module must get right: tied weights, buffers of several dtypes, a scalar.
#pragma once

#include <ATen/ops/ones.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>

#include <memory>

namespace lockstep {

struct TiedDecoder : torch::nn::Module {
  explicit TiedDecoder(const at::Tensor& weight) { register_parameter("weight", weight); }
};

struct TiedModule : torch::nn::Module {
  TiedModule() {
    decoder = register_module("decoder", std::make_shared<TiedDecoder>(embedding->weight));
    register_module("embedding", embedding);
    register_module("norm", norm);
    register_buffer("small", at::ones({2, 2}, at::kBFloat16));
  }
  torch::nn::Embedding embedding{7, 3};
  torch::nn::BatchNorm1d norm{3};
  std::shared_ptr<TiedDecoder> decoder;
};

}  // namespace lockstep
