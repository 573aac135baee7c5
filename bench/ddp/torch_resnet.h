// ResNet-18 of LibTorch's own layers: what a step takes where only the layers are not Lockstep's.
#pragma once

#include <ATen/ops/max_pool2d.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace lockstep::bench_ddp {

inline torch::nn::Conv2d torch_convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

struct TorchBlockImpl : torch::nn::Module {
  torch::nn::Conv2d conv1, conv2;
  torch::nn::BatchNorm2d bn1, bn2;
  torch::nn::Sequential downsample{nullptr};

  TorchBlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1(torch_convolution(in, out, 3, stride)),
        conv2(torch_convolution(out, out, 3, 1)),
        bn1(out),
        bn2(out) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
    register_module("bn2", bn2);
    if (stride != 1 || in != out) {
      downsample = register_module("downsample", torch::nn::Sequential(torch_convolution(in, out, 1, stride),
                                                                       torch::nn::BatchNorm2d(out)));
    }
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor hidden = bn1(conv1(input)).relu_();
    hidden = bn2(conv2(hidden));
    hidden += downsample ? downsample->forward(input) : input;
    return hidden.relu_();
  }
};
TORCH_MODULE(TorchBlock);

/// models::ResNet18 with its stem for ImageNet, but for the layers.
struct TorchResNetImpl : torch::nn::Module {
  torch::nn::Conv2d conv1 = torch_convolution(3, 64, 7, 2);
  torch::nn::BatchNorm2d bn1{64};
  torch::nn::Sequential blocks;
  torch::nn::Linear fc;

  explicit TorchResNetImpl(int64_t classes) : fc(512, classes) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    for (int64_t width = 64; width <= 512; width *= 2) {
      blocks->push_back(width == 64 ? TorchBlock(64, 64, 1) : TorchBlock(width / 2, width, 2));
      blocks->push_back(TorchBlock(width, width, 1));
    }
    register_module("blocks", blocks);
    register_module("fc", fc);
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor hidden = at::max_pool2d(bn1(conv1(input)).relu_(), 3, 2, 1);
    return fc(blocks->forward(hidden).mean({2, 3}));
  }
};
TORCH_MODULE(TorchResNet);

}  // namespace lockstep::bench_ddp
