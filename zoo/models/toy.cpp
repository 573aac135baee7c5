#include "lockstep/zoo/models/toy.h"

#include "lockstep/ops/linear.h"

namespace lockstep::models {

void ToyModelImpl::reset() {
  net1_ = register_module("net1", torch::nn::Linear(10, 10));
  net2_ = register_module("net2", torch::nn::Linear(10, 5));
}

at::Tensor ToyModelImpl::forward(const at::Tensor& input) {
  const at::Tensor hidden = ops::linear(input, net1_->weight, net1_->bias).relu();
  return ops::linear(hidden, net2_->weight, net2_->bias);
}

}  // namespace lockstep::models
