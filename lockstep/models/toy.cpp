#include "lockstep/models/toy.h"

namespace lockstep::models {

ToyModelImpl::ToyModelImpl() {
  net1_ = register_module("net1", torch::nn::Linear(10, 10));
  net2_ = register_module("net2", torch::nn::Linear(10, 5));
}

at::Tensor ToyModelImpl::forward(const at::Tensor& input) { return net2_(net1_(input).relu()); }

}  // namespace lockstep::models
