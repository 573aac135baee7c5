// activation_checkpoint() in one process, beside the same function without it.
#include "lockstep/parallel/activation_checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/ops/dropout.h"
#include "lockstep/ops/linear.h"
#include "lockstep/ops/std_layer_norm.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;

void expect_error(const std::string& part, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "no error that says " << part;
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}
using Function = std::function<at::Tensor(const at::Tensor&)>;

/// Runs what it is given, as it is or in a checkpoint.
class Caller {
 public:
  explicit Caller(bool checkpoints) : checkpoints_(checkpoints) {}
  at::Tensor operator()(const Function& function, const at::Tensor& x) const {
    return checkpoints_ ? activation_checkpoint(function, x) : function(x);
  }

 private:
  bool checkpoints_;
};

/// Gradients and the loss of `body(call, input, parameters)`, with checkpoints and without.
class Comparison {
 public:
  using Body = std::function<at::Tensor(const Caller&, const at::Tensor&, const Tensors&)>;
  explicit Comparison(at::ScalarType dtype = at::kFloat) {
    at::manual_seed(3);
    for (int i = 0; i < 4; ++i) parameters_.push_back(at::randn({8, 8}, dtype).div_(3).requires_grad_());
    input_ = at::randn({6, 8}, dtype);
  }
  void input_requires_grad() { input_.requires_grad_(); }

  void expect_equal(const Body& body) {
    const Tensors plain = run(body, false), again = run(body, true);
    ASSERT_EQ(plain.size(), again.size());
    for (size_t i = 0; i < plain.size(); ++i) {
      ASSERT_EQ(plain[i].defined(), again[i].defined()) << i;
      if (plain[i].defined())
        EXPECT_TRUE(plain[i].equal(again[i])) << "gradient " << i << "\n" << plain[i] - again[i];
    }
  }

 private:
  Tensors run(const Body& body, bool checkpoints) {
    at::manual_seed(5);
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
    input_.mutable_grad().reset();
    const at::Tensor loss = body(Caller(checkpoints), input_, parameters_);
    const at::Tensor drawn = at::rand({2});  // the stream goes on where the first run left it
    loss.backward();
    Tensors all = {loss.detach(), drawn, at::rand({2}), input_.grad()};
    for (const at::Tensor& parameter : parameters_) all.push_back(parameter.grad());
    return all;
  }

  Tensors parameters_;
  at::Tensor input_;
};

/// Saves its inputs, its output and numbers that it draws.
at::Tensor layer(const at::Tensor& x, const at::Tensor& weight) {
  return at::dropout(at::gelu(at::matmul(x, weight)).tanh(), 0.4, true) + (-x.square()).exp();
}

TEST(ActivationCheckpoint, EqualsTheFunctionToTheBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const bool needs_input : {false, true}) {
      Comparison comparison(dtype);
      if (needs_input) comparison.input_requires_grad();
      comparison.expect_equal([](const Caller& call, at::Tensor x, const Tensors& p) {
        for (const at::Tensor& weight : p)
          x = call([weight](const at::Tensor& h) { return layer(h, weight); }, x);
        return x.sum();
      });
    }
  }
}

TEST(ActivationCheckpoint, OurOperationsDrawTheSameNumbers) {
  Comparison().expect_equal([](const Caller& call, at::Tensor x, const Tensors& p) {
    for (const at::Tensor& weight : p) {
      x = call(
          [weight](const at::Tensor& h) {
            const at::Tensor alpha = weight[0], bias = weight[1];
            const at::Tensor y = ops::linear(h, weight, bias);
            return ops::dropout_add(ops::std_layer_norm(y, alpha, bias, 1e-6), 0.3, ops::dropout(h, 0.2));
          },
          x);
    }
    return x.square().sum();
  });
}

TEST(ActivationCheckpoint, Nests) {
  Comparison comparison;
  comparison.input_requires_grad();
  comparison.expect_equal([](const Caller& call, const at::Tensor& x, const Tensors& p) {
    const auto inner = [&](const at::Tensor& w) { return [w](const at::Tensor& h) { return layer(h, w); }; };
    const Function pair = [call, inner, p](const at::Tensor& h) {
      const at::Tensor y = call(inner(p[1]), call(inner(p[0]), h) * 2);
      return y.sigmoid() *
             call([call, inner, p](const at::Tensor& v) { return call(inner(p[2]), v).cos(); }, y);
    };
    return call(inner(p[3]), call(pair, x)).sum();
  });
}

TEST(ActivationCheckpoint, SharedWeightsAndSeveralUsesOfTheOutput) {
  Comparison().expect_equal([](const Caller& call, const at::Tensor& x, const Tensors& p) {
    const Function same = [w = p[0]](const at::Tensor& h) { return layer(h, w); };
    const at::Tensor first = call(same, x), second = call(same, first);
    return (first * second).sum() + second.relu().sum();
  });
}

TEST(ActivationCheckpoint, WorksInPlace) {
  Comparison().expect_equal([](const Caller& call, const at::Tensor& x, const Tensors& p) {
    const at::Tensor y = call(
        [p](const at::Tensor& h) {
          at::Tensor v = at::matmul(h, p[0]);
          v.relu_();
          v = at::matmul(v, p[1]);
          v.add_(h);
          return v;
        },
        x);
    return y.square().sum();
  });
}

TEST(ActivationCheckpoint, TakesAnyArgumentsAndResults) {
  const at::Tensor w = at::randn({3, 3}).requires_grad_(), x = at::randn({2, 3});
  const auto two = [w](const at::Tensor& a, const at::Tensor& b, const at::Tensor& mask) {
    EXPECT_FALSE(mask.defined());
    return std::tuple(at::matmul(a, w).tanh(), b.exp() * w.sum());
  };
  const auto [l, r] = activation_checkpoint(two, x, x, at::Tensor());
  (l.sum() + r.sum()).backward();
  const at::Tensor gradient = w.grad().clone();
  w.mutable_grad().reset();
  const auto [pl, pr] = two(x, x, {});
  (pl.sum() + pr.sum()).backward();
  EXPECT_TRUE(gradient.equal(w.grad()));

  torch::nn::Linear linear(3, 2);
  EXPECT_TRUE(activation_checkpoint(linear, x).equal(linear(x)));
  EXPECT_TRUE(activation_checkpoint([&] { return w * 2; }).requires_grad());
}

TEST(ActivationCheckpoint, FrozenStaysFrozen) {
  const at::Tensor w = at::randn({3, 3}), x = at::randn({2, 3});
  EXPECT_FALSE(activation_checkpoint([w](const at::Tensor& h) { return layer(h, w); }, x).requires_grad());
}

/// How often its function runs, and how many bytes the tensors of its graph hold.
TEST(ActivationCheckpoint, RunsTheFunctionAgainOnceABackward) {
  int runs = 0, recomputations = 0;
  const at::Tensor w = at::randn({3, 3}).requires_grad_(), x = at::randn({2, 3});
  const Function counted = [&](const at::Tensor& h) {
    ++runs;
    recomputations += is_recomputing() ? 1 : 0;
    return layer(h, w).exp() * 2;
  };
  {
    const at::NoGradGuard no_grad;
    activation_checkpoint(counted, x);
    EXPECT_EQ(runs, 1);
  }
  const at::Tensor loss = activation_checkpoint(counted, x).sum();
  EXPECT_EQ(runs, 2);
  for (int backward = 1; backward <= 3; ++backward) {
    loss.backward({}, /*keep_graph=*/backward < 3);
    EXPECT_EQ(recomputations, backward);
  }
  const at::Tensor once = w.grad().clone();
  EXPECT_ANY_THROW(loss.backward());
  const at::Tensor other = activation_checkpoint(counted, x).sum();
  const Tensors by_grad = torch::autograd::grad({other}, {w});
  EXPECT_EQ(recomputations, 4);
  EXPECT_TRUE(w.grad().equal(once));
  EXPECT_FALSE(is_recomputing());
}

TEST(ActivationCheckpoint, KeepsNoActivation) {
  const at::Tensor w = at::randn({3, 3}).requires_grad_(), x = at::randn({2, 3});
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> inside;
  const Function watched = [&](const at::Tensor& h) {
    at::Tensor y = h;
    for (int i = 0; i < 3; ++i) {
      y = at::matmul(y, w).sigmoid();
      inside.emplace_back(y.getIntrusivePtr());
    }
    return y * 2;
  };
  const at::Tensor loss = activation_checkpoint(watched, x).sum();
  ASSERT_EQ(inside.size(), 3U);
  for (const auto& activation : inside) EXPECT_TRUE(activation.expired());
  const at::Tensor plain = watched(x).sum();
  for (size_t i = 3; i < 6; ++i) EXPECT_FALSE(inside[i].expired() && i == 3);
  loss.backward();
}

TEST(ActivationCheckpoint, SecondDerivativesAreRight) {
  const at::Tensor w = at::randn({3, 3}, at::kDouble).requires_grad_(),
                   x = at::randn({2, 3}, at::kDouble).requires_grad_();
  const auto penalty = [&](bool checkpoints) {
    const Function f = [w](const at::Tensor& h) { return at::matmul(h, w).tanh().exp(); };
    const at::Tensor y = checkpoints ? activation_checkpoint(f, x) : f(x);
    const at::Tensor dx = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({dx.square().sum()}, {w})[0];
  };
  EXPECT_TRUE(penalty(true).equal(penalty(false)));
}

TEST(ActivationCheckpoint, KeepsTheAutocastMode) {
  const at::Tensor w = at::randn({8, 8}).requires_grad_(), x = at::randn({4, 8});
  const auto gradient = [&](bool checkpoints) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const Function f = [w](const at::Tensor& h) { return at::matmul(at::matmul(h, w).tanh(), w); };
    const at::Tensor y = checkpoints ? activation_checkpoint(f, x) : f(x);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    w.mutable_grad().reset();
    y.sum().backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    return w.grad().clone();
  };
  const at::Tensor plain = gradient(false);
  EXPECT_TRUE(gradient(true).equal(plain));
}

TEST(ActivationCheckpoint, WithoutTheRandomStateTheSecondRunDrawsNewNumbers) {
  const at::Tensor x = at::ones({1000}).requires_grad_();
  const auto kept = [&](const ActivationCheckpointOptions& options) {
    at::manual_seed(1);
    const at::Tensor y = activation_checkpoint(
        options, [](const at::Tensor& h) { return at::dropout(h, 0.5, true); }, x);
    x.mutable_grad().reset();
    y.sum().backward();
    return y.detach().equal(x.grad());
  };
  EXPECT_TRUE(kept({}));
  EXPECT_FALSE(kept({.preserve_rng_state = false}));
}

TEST(ActivationCheckpoint, ExceptionsLeaveNothingBehind) {
  const at::Tensor w = at::randn({3, 3}).requires_grad_(), x = at::randn({2, 3});
  EXPECT_THROW(activation_checkpoint(
                   [&](const at::Tensor& h) -> at::Tensor {
                     const at::Tensor y = layer(h, w);
                     throw ValueError("first run");
                   },
                   x),
               ValueError);
  int runs = 0;
  const at::Tensor y = activation_checkpoint(
      [&](const at::Tensor& h) {
        if (++runs == 2) throw ValueError("second run");
        return layer(h, w);
      },
      x);
  EXPECT_ANY_THROW(y.sum().backward());
  EXPECT_FALSE(is_recomputing());
  // What follows saves its tensors as usual.
  const at::Tensor plain = layer(x, w).sum();
  plain.backward();
  EXPECT_EQ(runs, 2);
}

TEST(ActivationCheckpoint, WhatCannotBeMadeAgainIsAnError) {
  const at::Tensor w = at::randn({3, 3}).requires_grad_(), x = at::randn({2, 3});
  const auto expect_refused = [&](
                                  const std::string& part, const Function& function,
                                  const std::function<void()>& between = [] {}) {
    const at::Tensor loss = activation_checkpoint(function, x).sum();
    between();
    expect_error(part, [&] { loss.backward(); });
  };
  const Function plain = [&](const at::Tensor& h) {
    return at::matmul(at::matmul(h, w).tanh(), w).exp() * 2;
  };
  int runs = 0;
  expect_refused("it must do the same each time", [&](const at::Tensor& h) {
    const at::Tensor y = at::matmul(h, w).tanh();
    return ++runs == 2 ? y.exp() : y * 3;
  });
  runs = 0;
  expect_refused("it must do the same each time", [&](const at::Tensor& h) {
    return at::matmul(++runs == 2 ? h.slice(0, 0, 1) : h, w).tanh().exp();
  });
  expect_refused("changed in place", plain, [&] {
    const at::NoGradGuard no_grad;
    w.add_(1);
  });
  // A layer saves a view of its weight, which is gone.
  torch::nn::Linear linear(3, 3);
  const at::Tensor input = at::randn({2, 3}).requires_grad_();
  const at::Tensor loss = activation_checkpoint(linear, input).sum();
  {
    const at::NoGradGuard no_grad;
    linear->weight.mul_(2);
  }
  expect_error("changed in place", [&] { loss.backward(); });
  expect_refused("modified by an inplace operation", plain, [&] { x.add_(1); });
  expect_error("runs a backward through what it has computed itself", [&] {
    activation_checkpoint(
        [&](const at::Tensor& h) { return torch::autograd::grad({plain(h).sum()}, {w})[0]; }, x);
  });
}

TEST(ActivationCheckpoint, ThreadsDoNotDisturbEachOther) {
  std::vector<std::thread> threads;
  std::vector<int> right(4);
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&right, t] {
      const at::Tensor w = at::full({3, 3}, 0.1 * static_cast<double>(t + 1)).requires_grad_(),
                       x = at::ones({2, 3});
      const Function f = [w](const at::Tensor& h) { return at::matmul(h, w).tanh().exp(); };
      for (int i = 0; i < 200; ++i) {
        w.mutable_grad().reset();
        activation_checkpoint(f, activation_checkpoint(f, x)).sum().backward();
        const at::Tensor gradient = w.grad().clone();
        w.mutable_grad().reset();
        f(f(x)).sum().backward();
        right[t] += gradient.equal(w.grad()) ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, std::vector<int>(4, 200));
}

}  // namespace
}  // namespace lockstep
