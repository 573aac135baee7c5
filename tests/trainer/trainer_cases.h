// What the cases of the Trainer share.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <filesystem>
#include <string>

#include "lockstep/trainer/trainer.h"
#include "tests/ranks/rank_test.h"

namespace lockstep::testing {

/// A directory that all ranks know; rank 0 removes it.
class SharedFolder {
 public:
  SharedFolder();
  ~SharedFolder();
  SharedFolder(const SharedFolder&) = delete;
  std::filesystem::path path;
};

/// Arguments that write into `folder`: one epoch, SGD with learning rate 1, no clipping, constant schedule.
TrainingArguments plain_arguments(const SharedFolder& folder);

/// Classes of points; double precision. Its own module, as a user would write it.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t features = 3, int64_t classes = 4, double dropout = 0);
  at::Tensor forward(const at::Tensor& x);
  torch::nn::Linear first, second;
  double dropout;
};
TORCH_MODULE(Net);

/// Points and classes that a Net can learn.
Dataset points(int64_t size, int64_t features = 3, int64_t classes = 4);

inline Loss net_loss(TrainedModel<Net>& net, const Batch& batch) {
  return cross_entropy_sum(net(batch["x"]), batch["label"]);
}

/// All parameters as one vector.
at::Tensor weights_of(const torch::nn::Module& module);

}  // namespace lockstep::testing
