#include "lockstep/models/resnet.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d.h>
#include <torch/nn/init.h>

#include "lockstep/ops/linear.h"

namespace lockstep::models {
namespace {

ops::Conv2d convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
  ops::Conv2d conv(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding).bias(false));
  // The same numbers for a seed, in whatever order the weight lies in memory.
  const at::NoGradGuard no_grad;
  const at::Tensor initial = at::empty(conv->weight.sizes());
  conv->weight.copy_(torch::nn::init::kaiming_normal_(initial, 0, torch::kFanOut, torch::kReLU));
  return conv;
}

BatchNorm norm(int64_t channels) { return BatchNorm(torch::nn::BatchNormOptions(channels)); }

torch::nn::Sequential layer(int64_t in, int64_t out, int64_t stride) {
  return torch::nn::Sequential(BasicBlock(in, out, stride), BasicBlock(out, out, 1));
}

}  // namespace

BasicBlockImpl::BasicBlockImpl(int64_t in_channels, int64_t channels, int64_t stride) {
  conv1_ = register_module("conv1", convolution(in_channels, channels, 3, stride, 1));
  bn1_ = register_module("bn1", norm(channels));
  conv2_ = register_module("conv2", convolution(channels, channels, 3, 1, 1));
  bn2_ = register_module("bn2", norm(channels));
  if (stride == 1 && in_channels == channels) return;
  downsample_ = register_module(
      "downsample", torch::nn::Sequential(convolution(in_channels, channels, 1, stride, 0), norm(channels)));
}

at::Tensor BasicBlockImpl::forward(const at::Tensor& input) {
  at::Tensor hidden = bn1_(conv1_(input)).relu_();
  hidden = bn2_(conv2_(hidden));
  hidden += downsample_ ? downsample_->forward(input) : input;
  return hidden.relu_();
}

ResNet18Impl::ResNet18Impl(int64_t num_classes) {
  conv1_ = register_module("conv1", convolution(3, 64, 7, 2, 3));
  bn1_ = register_module("bn1", norm(64));
  layer1_ = register_module("layer1", layer(64, 64, 1));
  layer2_ = register_module("layer2", layer(64, 128, 2));
  layer3_ = register_module("layer3", layer(128, 256, 2));
  layer4_ = register_module("layer4", layer(256, 512, 2));
  fc_ = register_module("fc", torch::nn::Linear(512, num_classes));
}

at::Tensor ResNet18Impl::forward(const at::Tensor& input) {
  at::Tensor hidden = at::max_pool2d(bn1_(conv1_(input)).relu_(), 3, 2, 1);
  hidden = layer4_->forward(layer3_->forward(layer2_->forward(layer1_->forward(hidden))));
  return ops::linear(hidden.mean({2, 3}), fc_->weight, fc_->bias);
}

}  // namespace lockstep::models
