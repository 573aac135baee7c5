// The smallest model that is worth distributing: two linear layers, as in PyTorch's DDP tutorial.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>

namespace lockstep::models {

/// net1 = Linear(10, 10), relu, net2 = Linear(10, 5). Parameters net1.weight, net1.bias, net2.weight,
/// net2.bias.
class ToyModelImpl : public torch::nn::Cloneable<ToyModelImpl> {
 public:
  /// Fresh weights from torch's default generator, as torch::nn::Linear's.
  ToyModelImpl() { reset(); }
  /// Makes the layers with fresh weights; for clone().
  void reset() override;
  /// float [batch, 10] -> float [batch, 5]
  at::Tensor forward(const at::Tensor& input);

 private:
  torch::nn::Linear net1_{nullptr};
  torch::nn::Linear net2_{nullptr};
};
TORCH_MODULE(ToyModel);

}  // namespace lockstep::models
