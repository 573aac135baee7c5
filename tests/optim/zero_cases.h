// What the cases of the sharded optimizers have in common.
#pragma once

#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {

/// Parameters of less than a chunk, of several, and of a part of one.
struct WideImpl : torch::nn::Module {
  WideImpl() {
    net1 = register_module("net1", torch::nn::Linear(10, 130));
    net2 = register_module("net2", torch::nn::Linear(130, 130));
    net3 = register_module("net3", torch::nn::Linear(130, 5));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    return net3->forward(net2->forward(net1->forward(x).relu()).relu());
  }
  torch::nn::Linear net1{nullptr}, net2{nullptr}, net3{nullptr};
};
TORCH_MODULE(Wide);

}  // namespace lockstep::testing
