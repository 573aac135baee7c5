// SGD whose step is one fused kernel over all parameters of a group, as fused=True is in Python.
#pragma once

#include <torch/optim/sgd.h>

#include <vector>

namespace lockstep {

/// torch::optim::SGD with the same options (lr, momentum 0, dampening 0, weight_decay 0, nesterov false),
/// parameter groups, state (momentum_buffer) and save/load, so that one can replace the other; its results
/// equal Python's torch.optim.SGD(fused=True). Parameters without a gradient are left alone. zero_grad(false)
/// keeps gradients where they are, in the buckets of DistributedDataParallel. A tensor that is listed several
/// times, as LibTorch's parameters() lists tied weights, is one parameter: it is in its group once, and a step
/// changes it once. Not thread-safe.
class FusedSGD : public torch::optim::SGD {
 public:
  /// Throws ValueError for a tensor that is in two groups.
  explicit FusedSGD(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                    torch::optim::SGDOptions defaults);
  /// One group.
  explicit FusedSGD(std::vector<torch::Tensor> params, torch::optim::SGDOptions defaults);

  /// Adds a group. Throws ValueError for a tensor that is in a group already.
  void add_param_group(const torch::optim::OptimizerParamGroup& param_group);

  /// One step; with a closure, evaluates it first with gradients enabled and returns its loss. Throws
  /// ValueError for a sparse gradient, for a gradient or a state of another shape than its parameter's, and for a
  /// tensor that was put into two groups meanwhile.
  torch::Tensor step(LossClosure closure = nullptr) override;

  /// For torch::load(): the options and the state of the archive, which FusedSGD or torch::optim::SGD has
  /// saved, and nothing of the state from before. Throws ValueError for other groups and for
  /// parameters of other shapes; then nothing has changed.
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace lockstep
