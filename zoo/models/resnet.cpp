#include "lockstep/zoo/models/resnet.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d.h>
#include <fmt/format.h>
#include <torch/nn/init.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/ops/linear.h"

namespace lockstep::models {
namespace {

ops::Conv2d convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
  ops::Conv2d conv(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding).bias(false));
  // A seed gives the same numbers in whatever order the weight lies in memory.
  const at::NoGradGuard no_grad;
  const at::Tensor initial = at::empty(conv->weight.sizes());
  conv->weight.copy_(torch::nn::init::kaiming_normal_(initial, 0, torch::kFanOut, torch::kReLU));
  return conv;
}

BatchNorm norm(int64_t channels) { return BatchNorm(torch::nn::BatchNormOptions(channels)); }

torch::nn::Sequential layer(int64_t blocks, int64_t in, int64_t out, int64_t stride) {
  torch::nn::Sequential made;
  for (int64_t block = 0; block < blocks; ++block) {
    made->push_back(block == 0 ? BasicBlock(in, out, stride) : BasicBlock(out, out, 1));
  }
  return made;
}

void check_positive(const char* name, int64_t value) {
  if (value >= 1) return;
  throw ValueError(fmt::format("ResNetOptions: {} must be at least 1, not {}", name, value));
}

}  // namespace

BasicBlockImpl::BasicBlockImpl(int64_t in_channels, int64_t channels, int64_t stride)
    : in_channels_(in_channels), channels_(channels), stride_(stride) {
  reset();
}

void BasicBlockImpl::reset() {
  conv1_ = register_module("conv1", convolution(in_channels_, channels_, 3, stride_, 1));
  bn1_ = register_module("bn1", norm(channels_));
  conv2_ = register_module("conv2", convolution(channels_, channels_, 3, 1, 1));
  bn2_ = register_module("bn2", norm(channels_));
  if (stride_ == 1 && in_channels_ == channels_) return;
  downsample_ = register_module(
      "downsample",
      torch::nn::Sequential(convolution(in_channels_, channels_, 1, stride_, 0), norm(channels_)));
}

at::Tensor BasicBlockImpl::forward(const at::Tensor& input) {
  at::Tensor hidden = bn1_(conv1_(input)).relu_();
  hidden = bn2_(conv2_(hidden));
  hidden += downsample_ ? downsample_->forward(input) : input;
  return hidden.relu_();
}

ResNetImpl::ResNetImpl(ResNetOptions options) : options_(options) {
  check_positive("num_classes", options_.num_classes);
  check_positive("width", options_.width);
  for (const int64_t blocks : options_.blocks) check_positive("blocks", blocks);
  reset();
}

void ResNetImpl::reset() {
  const int64_t width = options_.width;
  using Stem = ResNetOptions::Stem;
  conv1_ = register_module("conv1", options_.stem == Stem::imagenet
                                        ? convolution(3, width, 7, 2, 3)
                                        : convolution(3, width, 3, options_.stem == Stem::cifar ? 1 : 2, 1));
  bn1_ = register_module("bn1", norm(width));
  const auto& [first, second, third, fourth] = options_.blocks;
  layer1_ = register_module("layer1", layer(first, width, width, 1));
  layer2_ = register_module("layer2", layer(second, width, 2 * width, 2));
  layer3_ = register_module("layer3", layer(third, 2 * width, 4 * width, 2));
  layer4_ = register_module("layer4", layer(fourth, 4 * width, 8 * width, 2));
  fc_ = register_module("fc", torch::nn::Linear(8 * width, options_.num_classes));
}

at::Tensor ResNetImpl::forward(const at::Tensor& input) {
  at::Tensor hidden = bn1_(conv1_(input)).relu_();
  if (options_.stem == ResNetOptions::Stem::imagenet) hidden = at::max_pool2d(hidden, 3, 2, 1);
  hidden = layer4_->forward(layer3_->forward(layer2_->forward(layer1_->forward(hidden))));
  return ops::linear(hidden.mean({2, 3}), fc_->weight, fc_->bias);
}

}  // namespace lockstep::models
