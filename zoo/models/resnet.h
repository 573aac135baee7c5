// Residual networks (He et al. 2015), with torchvision's structure, names and shapes.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <cstdint>

#include "lockstep/ops/convolution.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep::models {

/// Two 3x3 convolutions beside a shortcut: conv1, bn1, conv2, bn2, downsample.{0,1}.
class BasicBlockImpl : public torch::nn::Cloneable<BasicBlockImpl> {
 public:
  /// `stride` of the first convolution, in pixels. The shortcut is a 1x1 convolution where shapes differ.
  BasicBlockImpl(int64_t in_channels, int64_t channels, int64_t stride);
  /// Makes the layers with fresh weights; for clone().
  void reset() override;
  /// float [batch, in_channels, height, width] -> [batch, channels, height / stride, width / stride], rounded up
  at::Tensor forward(const at::Tensor& input);

 private:
  int64_t in_channels_, channels_, stride_;
  ops::Conv2d conv1_{nullptr}, conv2_{nullptr};
  BatchNorm bn1_{nullptr}, bn2_{nullptr};
  torch::nn::Sequential downsample_{nullptr};
};
TORCH_MODULE(BasicBlock);

/// The shape of a ResNet; the defaults are ResNet-18's.
struct ResNetOptions {
  int64_t num_classes = 1000;  ///< logits per picture
  /// `imagenet`: a 7x7 convolution of stride 2 and max pooling, for pictures of about 224 pixels; `cifar`: a
  /// 3x3 convolution of stride 1 alone, for 32 pixels; `stride2`: that with stride 2, a quarter of the work.
  enum class Stem : uint8_t { imagenet, cifar, stride2 } stem = Stem::imagenet;  ///< the first layers
  /// Blocks in each of the four layers: ResNet-18 has {2, 2, 2, 2}, ResNet-34 {3, 4, 6, 3}.
  std::array<int64_t, 4> blocks{2, 2, 2, 2};
  /// Channels of the stem and of the first layer; each further layer has twice as many.
  int64_t width = 64;
};

/// Residual networks of basic blocks; keys and shapes are torchvision's. Convolutions start from He's normal
/// (fan out), as there. Throws ValueError for an option below 1.
class ResNetImpl : public torch::nn::Cloneable<ResNetImpl> {
 public:
  /// Fresh weights from torch's default generator.
  explicit ResNetImpl(ResNetOptions options = {});
  /// Makes the layers with fresh weights; for clone().
  void reset() override;
  /// float [batch, 3, height, width] -> float [batch, num_classes]
  at::Tensor forward(const at::Tensor& input);
  /// As the constructor was given them.
  const ResNetOptions& options() const { return options_; }

 private:
  ResNetOptions options_;
  ops::Conv2d conv1_{nullptr};
  BatchNorm bn1_{nullptr};
  torch::nn::Sequential layer1_{nullptr}, layer2_{nullptr}, layer3_{nullptr}, layer4_{nullptr};
  torch::nn::Linear fc_{nullptr};
};
TORCH_MODULE(ResNet);

/// 11.7 million parameters at 1000 classes: torchvision.models.resnet18.
inline ResNet ResNet18(int64_t num_classes = 1000) {
  return ResNet(ResNetOptions{.num_classes = num_classes});
}

}  // namespace lockstep::models
