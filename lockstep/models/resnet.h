// ResNet-18 (He et al. 2015), with torchvision's structure, names and shapes.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/ops/convolution.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep::models {

/// Two 3x3 convolutions beside a shortcut: conv1, bn1, conv2, bn2, downsample.{0,1}.
class BasicBlockImpl : public torch::nn::Module {
 public:
  /// `stride` of the first convolution, in pixels. The shortcut is a 1x1 convolution where shapes differ.
  BasicBlockImpl(int64_t in_channels, int64_t channels, int64_t stride);
  at::Tensor forward(const at::Tensor& input);

 private:
  ops::Conv2d conv1_{nullptr}, conv2_{nullptr};
  BatchNorm bn1_{nullptr}, bn2_{nullptr};
  torch::nn::Sequential downsample_{nullptr};
};
TORCH_MODULE(BasicBlock);

/// 11.7 million parameters at 1000 classes; keys and shapes are those of torchvision.models.resnet18.
/// Convolutions start from He's normal (fan out), as there.
class ResNet18Impl : public torch::nn::Module {
 public:
  explicit ResNet18Impl(int64_t num_classes = 1000);
  /// float [batch, 3, height, width] -> float [batch, num_classes]
  at::Tensor forward(const at::Tensor& input);

 private:
  ops::Conv2d conv1_{nullptr};
  BatchNorm bn1_{nullptr};
  torch::nn::Sequential layer1_{nullptr}, layer2_{nullptr}, layer3_{nullptr}, layer4_{nullptr};
  torch::nn::Linear fc_{nullptr};
};
TORCH_MODULE(ResNet18);

}  // namespace lockstep::models
