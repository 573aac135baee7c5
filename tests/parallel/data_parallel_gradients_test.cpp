// Gradients under DataParallel where a module, or its caller, does something unusual: they are the bare module's.
#include <ATen/Context.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel/data_parallel.h"
#include "lockstep/parallel/data_parallel/replicate.h"
#include "tests/parallel/ddp_models.h"
#include "tests/parallel/gradients.h"

namespace lockstep {
namespace {

using testing::expect_close;
using testing::gradients_of;
using testing::wave;

/// One weight under two names.
struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : in(register_parameter("in", wave({5, 4}, 3))),
        bias(register_parameter("bias", wave({5}, 2))),
        out(register_parameter("out", in)) {}
  at::Tensor forward(const at::Tensor& x) { return (x.matmul(in.t()) + bias).tanh().matmul(out); }
  at::Tensor in, bias, out;
};
TORCH_MODULE(Tied);

TEST(DataParallelGradients, OfTiedParametersAreAddedOnce) {
  Tied alone;
  DataParallel parallel([] { return Tied(); }, {.replicas = 2});
  for (int step = 0; step < 3; ++step) {  // the later ones add to what is there
    parallel(wave({6, 4}, step)).square().sum().backward();
    alone(wave({6, 4}, step)).square().sum().backward();
    expect_close(gradients_of(*parallel.module()), gradients_of(*alone));
  }
}

struct CloneableTiedImpl : torch::nn::Cloneable<CloneableTiedImpl> {
  CloneableTiedImpl() { reset(); }
  void reset() override {
    in = register_parameter("in", wave({5, 4}, 3));
    out = register_parameter("out", in);
  }
  at::Tensor forward(const at::Tensor& x) { return x.matmul(in.t()).tanh().matmul(out); }
  at::Tensor in, out;
};
TORCH_MODULE(CloneableTied);

TEST(DataParallelGradients, OfTiedParametersOfReplicasAreAddedOnce) {
  CloneableTied net, alone;
  auto replicas = replicate(net, 2);
  const std::vector<at::Tensor> inputs = {wave({3, 4}, 1), wave({3, 4}, 2)};
  const auto outputs = parallel_apply(replicas, inputs);
  (outputs[0].square().sum() + outputs[1].square().sum()).backward();
  (alone(inputs[0]).square().sum() + alone(inputs[1]).square().sum()).backward();
  expect_close(gradients_of(*net), gradients_of(*alone));
}

TEST(DataParallelGradients, AModuleThatIsRegisteredTwiceNeedsAFactory) {
  const torch::nn::Linear layer(4, 4);
  torch::nn::Sequential twice(layer, layer);
  try {
    DataParallel parallel(twice, {.replicas = 2});
    FAIL() << "no error";
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("give DataParallel a factory"), std::string::npos)
        << error.what();
  }
}

TEST(DataParallelGradients, AFactoryThatMakesOneModuleTwiceIsRefused) {
  torch::nn::Linear encoder(4, 4);
  const auto refused = [](auto factory) {
    try {
      DataParallel parallel(factory, {.replicas = 2});
      FAIL() << "no error";
    } catch (const ValueError& error) {
      EXPECT_NE(std::string(error.what()).find("the same parameter itself"), std::string::npos)
          << error.what();
    }
  };
  refused([&] { return encoder; });
  refused([&] { return torch::nn::Sequential(encoder, torch::nn::Linear(4, 2)); });
}

// After an error of a hook the next step is that of a bare module; gradients that were there before stay.
TEST(DataParallelGradients, AHookThatThrowsLeavesNothingBehind) {
  torch::nn::Linear net(4, 2), alone(4, 2);
  {
    const at::NoGradGuard no_grad;
    alone->weight.copy_(net->weight);
    alone->bias.copy_(net->bias);
  }
  bool throws = false;
  net->bias.register_hook([&](const at::Tensor& gradient) {
    if (throws) throw std::runtime_error("not a number");
    return gradient;
  });
  DataParallel parallel(net, {.replicas = 3});
  const auto step = [&](auto& model, int number) { model(wave({6, 4}, number)).square().sum().backward(); };
  step(parallel, 0);
  step(alone, 0);
  throws = true;
  EXPECT_ANY_THROW(step(parallel, 1));
  throws = false;
  expect_close(gradients_of(*net), gradients_of(*alone));
  step(parallel, 2);
  step(alone, 2);
  expect_close(gradients_of(*net), gradients_of(*alone));
  net->zero_grad();
  alone->zero_grad();
  throws = true;
  EXPECT_ANY_THROW(step(parallel, 3));
  throws = false;
  net->zero_grad();
  step(parallel, 4);
  step(alone, 4);
  expect_close(gradients_of(*net), gradients_of(*alone));
}

TEST(DataParallelGradients, ThoseOfTheInputAloneLeaveTheParametersAlone) {
  torch::nn::Linear net(4, 2);
  DataParallel parallel(net, {.replicas = 2});
  const at::Tensor x = wave({6, 4}, 1).requires_grad_();
  const at::Tensor gradient = torch::autograd::grad({parallel(x).sum()}, {x})[0];
  EXPECT_TRUE(gradient.allclose(net->weight.sum(0).expand({6, 4})));
  EXPECT_FALSE(net->weight.grad().defined());
}

TEST(DataParallelGradients, HooksOnParametersSeeTheSum) {
  torch::nn::Linear net(4, 2), alone(4, 2);
  {
    const at::NoGradGuard no_grad;
    alone->weight.copy_(net->weight);
    alone->bias.copy_(net->bias);
  }
  for (auto* const one : {&net, &alone}) {
    (*one)->weight.register_hook([](const at::Tensor& gradient) { return gradient.clamp(-1, 1); });
    (*one)->bias.register_hook([](const at::Tensor& gradient) { return gradient * 0; });
  }
  DataParallel parallel(net, {.replicas = 3});
  for (int step = 0; step < 2; ++step) {
    parallel(wave({6, 4}, step)).square().sum().backward();
    alone->forward(wave({6, 4}, step)).square().sum().backward();
    expect_close(gradients_of(*net), gradients_of(*alone));
  }
}

struct NormedImpl : torch::nn::Cloneable<NormedImpl> {
  NormedImpl() { reset(); }
  void reset() override {
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    out = register_module("out", torch::nn::Linear(4, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return out->forward(norm->forward(x)); }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Normed);

TEST(DataParallelGradients, BuffersFollowTheModulesDtype) {
  Normed net;
  DataParallel parallel(net, {.replicas = 2});
  parallel(wave({6, 4}, 1)).sum().backward();
  net->zero_grad();
  net->to(at::kDouble);
  parallel(wave({6, 4}, 2).to(at::kDouble)).sum().backward();
  EXPECT_EQ(net->out->weight.grad().scalar_type(), at::kDouble);
}

struct InPlaceImpl : torch::nn::Cloneable<InPlaceImpl> {
  InPlaceImpl() { reset(); }
  void reset() override { out = register_module("out", torch::nn::Linear(4, 2)); }
  at::Tensor forward(at::Tensor x) {
    x.sub_(0.5);
    return out->forward(x.mul_(2)).square();
  }
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(InPlace);

TEST(DataParallelGradients, AForwardMayChangeItsInput) {
  InPlace net;
  InPlace alone(std::dynamic_pointer_cast<InPlaceImpl>(net->clone()));
  DataParallel parallel(net, {.replicas = 4});
  for (int step = 0; step < 10; ++step) {
    net->zero_grad();
    alone->zero_grad();
    parallel(wave({8, 4}, step)).mean().backward();
    alone->forward(wave({8, 4}, step)).mean().backward();
    expect_close(gradients_of(*net), gradients_of(*alone));
  }
}

}  // namespace
}  // namespace lockstep
