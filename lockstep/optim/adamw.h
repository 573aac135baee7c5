// AdamW whose step is one fused kernel over all parameters of a group, as fused=True is in Python.
#pragma once

#include <torch/optim/adamw.h>

namespace lockstep {

/// torch::optim::AdamW with the same options (lr 1e-3, betas 0.9 and 0.999, eps 1e-8, weight_decay 1e-2,
/// amsgrad false), parameter groups, state (exp_avg, exp_avg_sq, step) and save/load, so that one can replace
/// the other; its results equal Python's torch.optim.AdamW(fused=True). Parameters without a gradient are
/// left alone. Not thread-safe.
class FusedAdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;

  /// One step; with a closure, evaluates it first with gradients enabled and returns its loss. Throws
  /// ValueError for a sparse gradient.
  torch::Tensor step(LossClosure closure = nullptr) override;
};

/// Sets the learning rate of every group of `optimizer`.
void set_lr(torch::optim::Optimizer& optimizer, double lr);

}  // namespace lockstep
