// Convolutions over small images, as matrix products.
#pragma once

#include <torch/nn/modules/conv.h>

namespace lockstep::ops {

/// torch::nn::Conv2d with the same options, parameters and results (to within rounding), whose weight lies in
/// channels_last order. On CPU, a batch of small float or double images (at most 64 positions in the output,
/// at least 16 images; one group, no dilation, zero padding, no bias) is convolved by matrix products over
/// the batch, one for each position and row of the kernel: no copy of the input is made, and taps that fall
/// into the padding cost nothing, so that the last layers of a network for 32 x 32 images take a fraction of
/// oneDNN's time; the weight's gradient is computed where DistributedDataParallel averages it
/// (bucket_slot). Anything else goes the way of torch::nn::Conv2d, and so does what runs under autocast.
class Conv2dImpl : public torch::nn::Conv2dImpl {
 public:
  /// Fresh weights as torch::nn::Conv2d's, from torch's default generator.
  explicit Conv2dImpl(const torch::nn::Conv2dOptions& options);
  /// Makes weight and bias with fresh values; for torch::nn::Cloneable.
  void reset() override;
  /// A copy with weights of its own, on `device` (default: this one's).
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  /// [batch, in, height, width] -> [batch, out, ...]
  at::Tensor forward(const at::Tensor& input);

 private:
  at::Tensor call_libtorch(const at::Tensor& input);
};
TORCH_MODULE(Conv2d);

}  // namespace lockstep::ops
