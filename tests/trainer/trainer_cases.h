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

/// Makes a net with the same weights on each call.
Net make_net(double dropout = 0);

/// All parameters as one vector.
at::Tensor weights_of(const torch::nn::Module& module);

/// Notes the events in their order.
struct Recorder : TrainerCallback {
  std::string name() const override { return "recorder"; }
  void on_init_end(CallbackContext&) override { events += "init_end "; }
  void on_train_begin(CallbackContext&) override { events += "train_begin "; }
  void on_train_end(CallbackContext&) override { events += "train_end "; }
  void on_epoch_begin(CallbackContext&) override { events += "epoch_begin "; }
  void on_epoch_end(CallbackContext&) override { events += "epoch_end "; }
  void on_step_begin(CallbackContext&) override { events += "step_begin "; }
  void on_substep_end(CallbackContext&) override { events += "substep_end "; }
  void on_pre_optimizer_step(CallbackContext&) override { events += "pre_optimizer_step "; }
  void on_optimizer_step(CallbackContext&) override { events += "optimizer_step "; }
  void on_step_end(CallbackContext&) override { events += "step_end "; }
  void on_evaluate(CallbackContext&) override { events += "evaluate "; }
  void on_predict(CallbackContext&) override { events += "predict "; }
  void on_save(CallbackContext&) override { events += "save "; }
  void on_log(CallbackContext&) override { events += "log "; }
  std::string events;
};

}  // namespace lockstep::testing
