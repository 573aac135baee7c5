// The Trainer finds ranks whose replicas have drifted apart, before it saves them.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "tests/trainer/trainer_cases.h"

namespace lockstep::testing {
namespace {

using Disturbance = std::function<void(CallbackContext&)>;

/// Disturbs the last rank at the end of one step, and notes the steps that were made.
struct Disturb : TrainerCallback {
  Disturb(int64_t step, Disturbance disturbance) : step_(step), disturbance_(std::move(disturbance)) {}
  std::string name() const override { return "disturb"; }
  void on_step_end(CallbackContext& context) override {
    steps = context.state.global_step;
    if (steps == step_ && context.group.rank() == context.group.size() - 1) disturbance_(context);
  }
  int64_t steps = 0;

 private:
  int64_t step_;
  Disturbance disturbance_;
};

/// A training of 12 steps.
struct TwelveSteps {
  SharedFolder folder;
  TrainingArguments args = plain_arguments(folder);
  Net net = make_net();
  Dataset data = points(24 * world().size());
  TwelveSteps() {
    args.per_device_train_batch_size = 2;
    args.learning_rate = 0.1;
    args.optim_args = "momentum=0.9";
  }
  /// The step after which it ended.
  int64_t train(int64_t disturbed_step, Disturbance disturbance, const std::string& error) {
    const auto disturb = std::make_shared<Disturb>(disturbed_step, std::move(disturbance));
    Trainer trainer(net, args, world(),
                    {.train_dataset = data, .compute_loss = net_loss, .callbacks = {disturb}});
    if (error.empty()) {
      trainer.train();
    } else {
      try {
        trainer.train();
        ADD_FAILURE() << "no error";
      } catch (const ReportedError& found) {  // with which run_main() ends each rank
        EXPECT_NE(std::string(found.what()).find(error), std::string::npos) << found.what();
        EXPECT_EQ(found.exit_code(), 1);
      }
    }
    return disturb->steps;
  }
  bool has_saved(int64_t step) const {
    world().barrier();
    return std::filesystem::exists(args.output_dir / ("checkpoint-" + std::to_string(step)));
  }
};

void move_weight(CallbackContext& context) {
  const at::NoGradGuard no_grad;
  at::Tensor weight = context.model.named_parameters()["first.weight"];
  weight[2][1] += 0.5;
}

TEST(TrainerReplicas, NoFileIsMadeOfReplicasThatDiffer) {
  ONLY_IF(world().size() > 1);
  TwelveSteps run;
  run.args.save_steps = 4;
  const auto steps = run.train(6, move_weight,
                               "the ranks' replicas differ after step 8: parameter first.weight of rank " +
                                   std::to_string(world().size() - 1) + " differs from rank 0");
  EXPECT_EQ(steps, 8);
  EXPECT_TRUE(run.has_saved(4));
  EXPECT_FALSE(run.has_saved(8));
  EXPECT_FALSE(run.has_saved(12));
}

TEST(TrainerReplicas, WithoutCheckpointsTheyAreComparedAtTheEnd) {
  ONLY_IF(world().size() > 1);
  TwelveSteps run;
  run.args.save_strategy = SaveStrategy::NO;
  EXPECT_EQ(run.train(1, move_weight, "replicas differ after step 12: parameter first.weight"), 12);
}

TEST(TrainerReplicas, EveryFewSteps) {
  ONLY_IF(world().size() > 1);
  TwelveSteps run;
  run.args.save_strategy = SaveStrategy::NO;
  run.args.replica_check_steps = 3;
  EXPECT_EQ(run.train(4, move_weight, "replicas differ after step 6: parameter first.weight"), 6);
}

TEST(TrainerReplicas, InEachStep) {
  ONLY_IF(world().size() > 1);
  TwelveSteps run;
  run.args.replica_check_steps = 1;
  EXPECT_EQ(run.train(5, move_weight, "the first different element [2, 1] is "), 5);
}

TEST(TrainerReplicas, TheOptimizerIsComparedToo) {
  ONLY_IF(world().size() > 1);
  TwelveSteps run;
  run.args.replica_check_steps = 3;
  const Disturbance set_decay = [](CallbackContext& context) {
    static_cast<torch::optim::SGDOptions&>(context.optimizer->param_groups()[0].options()).weight_decay(0.25);
  };
  EXPECT_EQ(run.train(3, set_decay,
                      "differ after step 3: optimizer option weight_decay of parameter group 0 of rank"),
            3);
  // A step later the weights differ as well.
  TwelveSteps later;
  later.args.replica_check_steps = 3;
  EXPECT_EQ(later.train(5, set_decay,
                        "tensors and numbers differ, optimizer option weight_decay of parameter group 0 too"),
            6);
}

TEST(TrainerReplicas, MinusOneTurnsItOff) {
  TwelveSteps run;
  run.args.replica_check_steps = -1;
  run.args.save_steps = 4;
  EXPECT_EQ(run.train(2, move_weight, ""), 12);
  EXPECT_TRUE(run.has_saved(8));
}

// Statistics of batch normalizations differ between ranks at the end of a step, and with dropout, an average of the weights
// and a divided optimizer replicas stay equal.
TEST(TrainerReplicas, WhatMayDifferIsNoError) {
  struct NormNetImpl : torch::nn::Module {
    torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 8));
    torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(8));
    torch::nn::Linear second = register_module("second", torch::nn::Linear(8, 4));
    NormNetImpl() { to(at::kDouble); }
    at::Tensor forward(const at::Tensor& x) { return second(norm(first(x)).relu()); }
  };
  for (const bool broadcasts : {true, false}) {
    for (const bool divides : {true, false}) {
      TwelveSteps run;
      run.args.replica_check_steps = 1;
      run.args.ema_decay = 0.9;
      run.args.ddp_broadcast_buffers = broadcasts;
      run.args.zero_redundancy_optimizer = divides;
      run.args.optim = divides ? "adamw_torch_fused" : "sgd";
      if (divides) run.args.optim_args.clear();
      at::manual_seed(1);
      const auto net = std::make_shared<NormNetImpl>();
      Trainer trainer(net, run.args, world(),
                      {.train_dataset = run.data, .compute_loss = [](auto& model, const Batch& batch) {
                         return cross_entropy_sum(model(batch["x"]), batch["label"]);
                       }});
      trainer.train();
      EXPECT_EQ(trainer.state().global_step, 12);
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
