// One backward of all replicas: what it leaves with and without commit().
#include "lockstep/parallel/data_parallel/replica_backward.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

namespace lockstep::detail {
namespace {

/// Two replicas of a linear layer that have made a forward. The module has gradients already, all of them 1.
class ReplicaBackwardTest : public ::testing::Test {
 protected:
  ReplicaBackwardTest() {
    input_.requires_grad_();
    pass_.shards = divide_batch(find_tensors(input_, "x"), options_, mirror_.places());
    for (size_t r = 0; r < 2; ++r) {
      outputs_[r] = modules_[r]->forward(pass_.shards.parts[r][0]);
      pass_.outputs.push_back(find_tensors(outputs_[r], "y"));
    }
    joined_ = join_outputs(pass_, 0, mirror_.places()).tensors.front();
    for (const at::Tensor& parameter : modules_[0]->parameters()) {
      parameter.mutable_grad() = at::ones_like(parameter).detach();
    }
  }

  void run(ReplicaBackward& backward) { backward.run({at::ones_like(joined_)}, /*keep_graph=*/true); }

  void expect_all_as_before() const {
    for (const at::Tensor& parameter : modules_[0]->parameters()) {
      ASSERT_TRUE(parameter.grad().defined());
      EXPECT_TRUE(parameter.grad().equal(at::ones_like(parameter)));
    }
    for (const at::Tensor& parameter : modules_[1]->parameters()) EXPECT_FALSE(parameter.grad().defined());
    for (const auto& part : pass_.shards.parts) EXPECT_FALSE(part[0].grad().defined());
  }

  DataParallelOptions options_{.replicas = 2};
  std::vector<std::shared_ptr<torch::nn::LinearImpl>> modules_{std::make_shared<torch::nn::LinearImpl>(3, 2),
                                                               std::make_shared<torch::nn::LinearImpl>(3, 2)};
  ReplicaMirror mirror_{{modules_[0], modules_[1]}, choose_places(options_)};
  ReplicaThreads threads_{2, 1};
  at::Tensor input_ = at::arange(12, at::kFloat).reshape({4, 3});
  at::Tensor outputs_[2], joined_;
  ReplicaPass pass_{.shards = {}, .outputs = {}, .join = Join::concatenate};
};

TEST_F(ReplicaBackwardTest, UnlessCommittedNothingHasHappened) {
  const at::NoGradGuard no_grad;
  {
    const ReplicaBackward backward(mirror_, threads_, pass_, 0);
    EXPECT_FALSE(modules_[0]->weight.grad().defined());
  }
  expect_all_as_before();
  {
    ReplicaBackward backward(mirror_, threads_, pass_, 0);
    run(backward);
  }
  expect_all_as_before();
  {
    ReplicaBackward backward(mirror_, threads_, pass_, 0);
    run(backward);
    backward.add_up();
  }
  expect_all_as_before();
}

TEST_F(ReplicaBackwardTest, CommittedTheModuleHasTheSum) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> of_inputs;
  {
    ReplicaBackward backward(mirror_, threads_, pass_, 0);
    run(backward);
    backward.add_up();
    of_inputs = backward.commit();
  }
  const at::Tensor sums = input_.sum(0) + 1;  // of the input's rows, and the gradient from before
  EXPECT_TRUE(modules_[0]->weight.grad()[0].equal(sums));
  EXPECT_TRUE(modules_[0]->weight.grad()[1].equal(sums));
  EXPECT_EQ(modules_[0]->bias.grad()[0].item<float>(), 5);
  EXPECT_FALSE(modules_[1]->weight.grad().defined());
  ASSERT_EQ(of_inputs.size(), 1U);
  EXPECT_TRUE(of_inputs[0].allclose(modules_[0]->weight.sum(0).expand({4, 3})));
}

TEST_F(ReplicaBackwardTest, CommittedWithoutASumTheModuleKeepsItsGradients) {
  const at::NoGradGuard no_grad;
  {
    ReplicaBackward backward(mirror_, threads_, pass_, 0);
    run(backward);
    EXPECT_TRUE(backward.commit().front().defined());
  }
  expect_all_as_before();
}

TEST_F(ReplicaBackwardTest, AnExceptionInAHookOnAParameterUndoesItAndKeepsTheHook) {
  const at::NoGradGuard no_grad;
  int calls = 0;
  modules_[0]->bias.register_hook([&](const at::Tensor& gradient) -> at::Tensor {
    if (++calls == 1) throw std::runtime_error("the first time");
    return gradient * 2;
  });
  EXPECT_THROW(
      {
        ReplicaBackward backward(mirror_, threads_, pass_, 0);
        run(backward);
        EXPECT_EQ(calls, 0);  // it wants the sum
        backward.add_up();
      },
      std::runtime_error);
  expect_all_as_before();
  ReplicaBackward backward(mirror_, threads_, pass_, 0);
  run(backward);
  backward.add_up();
  backward.commit();
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(modules_[0]->bias.grad()[0].item<float>(), 4 * 2 + 1);
}

}  // namespace
}  // namespace lockstep::detail
