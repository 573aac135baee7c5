// AdamW whose step is one fused kernel over all parameters of a group, as fused=True is in Python.
#pragma once

#include <torch/optim/adamw.h>

#include <vector>

namespace lockstep {

/// torch::optim::AdamW with the same options (lr 1e-3, betas 0.9 and 0.999, eps 1e-8, weight_decay 1e-2,
/// amsgrad false), parameter groups, state (exp_avg, exp_avg_sq, step) and save/load, so that one can replace
/// the other; its results equal Python's torch.optim.AdamW(fused=True). Parameters without a gradient are
/// left alone. A tensor that is listed several times, as LibTorch's parameters() lists tied weights, is one
/// parameter: it is in its group once, and a step changes it once. Not thread-safe.
class FusedAdamW : public torch::optim::AdamW {
 public:
  /// Throws ValueError for a tensor that is in two groups.
  explicit FusedAdamW(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                      torch::optim::AdamWOptions defaults = {});
  /// One group.
  explicit FusedAdamW(std::vector<torch::Tensor> params, torch::optim::AdamWOptions defaults = {});

  /// Adds a group. Throws ValueError for a tensor that is in a group already.
  void add_param_group(const torch::optim::OptimizerParamGroup& param_group);

  /// One step; with a closure, evaluates it first with gradients enabled and returns its loss. Throws
  /// ValueError for a sparse gradient, for a gradient or a state of another shape than its parameter's, and for a
  /// tensor that was put into two groups meanwhile.
  torch::Tensor step(LossClosure closure = nullptr) override;

  /// For torch::load(): the options and the state of the archive, which FusedAdamW or torch::optim::AdamW has
  /// saved, and nothing of the state from before. Throws ValueError for other groups and for
  /// parameters of other shapes; then nothing has changed.
  void load(torch::serialize::InputArchive& archive) override;
};

/// Sets the learning rate of every group of `optimizer`.
void set_lr(torch::optim::Optimizer& optimizer, double lr);

}  // namespace lockstep
