// SGD whose step is one fused kernel over all parameters of a group, as fused=True is in Python.
#pragma once

#include <torch/optim/sgd.h>

namespace lockstep {

/// torch::optim::SGD with the same options (lr, momentum 0, dampening 0, weight_decay 0, nesterov false),
/// parameter groups, state (momentum_buffer) and save/load, so that one can replace the other; its results
/// equal Python's torch.optim.SGD(fused=True). Parameters without a gradient are left alone. zero_grad(false)
/// keeps gradients where they are, in the buckets of DistributedDataParallel. Not thread-safe.
class FusedSGD : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;

  /// One step; with a closure, evaluates it first with gradients enabled and returns its loss. Throws
  /// ValueError for a sparse gradient.
  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace lockstep
