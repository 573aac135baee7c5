// Our layers against those of LibTorch.
#include "lockstep/ops/convolution.h"
#include "lockstep/ops/dropout.h"
#include "lockstep/ops/embedding.h"
#include "lockstep/ops/linear.h"
#include "lockstep/ops/random_mask.h"
#include "lockstep/ops/std_layer_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_make_dual.h>
#include <ATen/ops/_unpack_dual.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>

namespace lockstep::ops {
namespace {

struct ConvolutionCase {
  int64_t images, in, out, height, width, kernel, stride, padding;
};

at::Tensor variable(at::IntArrayRef sizes) { return at::randn(sizes).requires_grad_(); }

at::Tensor gradient_of(const at::Tensor& output, const at::Tensor& input, const at::Tensor& direction,
                       bool create_graph = false) {
  return torch::autograd::grad({output}, {input}, {direction}, /*retain_graph=*/true, create_graph)[0];
}

void expect_close(const at::Tensor& found, const at::Tensor& expected, const char* what) {
  EXPECT_EQ(found.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(found.allclose(expected, 1e-4, 1e-4))
      << what << " is off by " << (found - expected).abs().max().item<float>();
}

TEST(Convolution, EqualsLibTorchs) {
  at::manual_seed(1);
  const ConvolutionCase cases[] = {{16, 3, 4, 8, 8, 3, 1, 1},   {17, 5, 6, 7, 5, 3, 2, 1},
                                   {16, 4, 8, 1, 1, 3, 1, 1},   {16, 4, 8, 2, 2, 3, 2, 1},
                                   {20, 4, 4, 6, 6, 1, 2, 0},   {16, 2, 3, 9, 9, 5, 3, 4},
                                   {16, 3, 4, 20, 20, 3, 1, 1}, {2, 3, 4, 4, 4, 3, 1, 1}};
  for (const ConvolutionCase& c : cases) {
    Conv2d ours(
        torch::nn::Conv2dOptions(c.in, c.out, c.kernel).stride(c.stride).padding(c.padding).bias(false));
    EXPECT_TRUE(ours->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
    const at::Tensor weight = ours->weight.detach().contiguous().requires_grad_();
    const at::Tensor x = variable({c.images, c.in, c.height, c.width});
    const at::Tensor theirs = at::conv2d(x, weight, {}, c.stride, c.padding);
    const at::Tensor output = ours(x);
    expect_close(output, theirs, "output");
    const at::Tensor direction = at::randn_like(theirs).contiguous();
    expect_close(gradient_of(output, x, direction), gradient_of(theirs, x, direction),
                 "gradient of the input");
    const at::Tensor gradient = gradient_of(output, ours->weight, direction);
    expect_close(gradient, gradient_of(theirs, weight, direction), "gradient of the weight");
  }
}

// The shortcut of a narrow residual network; oneDNN's gradient of such a weight overruns the heap (AVX2, one thread).
TEST(Convolution, FewChannelsWithAStrideEqualLibTorchs) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  for (int64_t in = 1; in <= 8; ++in) {
    for (int round = 0; round < 12; ++round) {
      Conv2d ours(torch::nn::Conv2dOptions(in, 2 * in, 1).stride({2, 3}).bias(in % 2 == 0));
      const at::Tensor x = variable({4, in, 12, 11}), exact = x.detach().to(at::kDouble);
      const at::Tensor weight = ours->weight.detach().to(at::kDouble).requires_grad_();
      const at::Tensor theirs =
          at::conv2d(exact, weight, ours->bias.defined() ? ours->bias.to(at::kDouble) : at::Tensor(), {2, 3});
      const at::Tensor output = ours(x.contiguous(at::MemoryFormat::ChannelsLast));
      expect_close(output, theirs.to(at::kFloat), "output");
      const at::Tensor direction = at::randn_like(output);
      expect_close(gradient_of(output, ours->weight, direction),
                   gradient_of(theirs, weight, direction.to(at::kDouble)).to(at::kFloat),
                   "gradient of the weight");
    }
  }
  at::set_num_threads(threads);
}

/// Shapes that other paths than the one above would give to oneDNN.
TEST(Convolution, FewChannelsWithAStrideEqualLibTorchsWhateverTheShape) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const std::vector<std::vector<int64_t>> shapes{{32, 4, 32, 32}, {16, 7, 24, 20}, {4, 32, 32}};
  for (const auto& shape : shapes) {
    for (const bool is_named : {false, true}) {
      const int64_t in = shape[shape.size() - 3];
      auto options = torch::nn::Conv2dOptions(in, 2 * in, 1).stride(2).bias(false);
      if (is_named) options.padding(torch::kValid);
      Conv2d ours(options);
      const at::Tensor x = variable(shape);
      const at::Tensor weight = ours->weight.detach().to(at::kDouble).requires_grad_();
      const at::Tensor theirs = at::conv2d(x.detach().to(at::kDouble), weight, {}, 2);
      const at::Tensor output = ours(shape.size() == 4 ? x.contiguous(at::MemoryFormat::ChannelsLast) : x);
      expect_close(output, theirs.to(at::kFloat), "output");
      const at::Tensor direction = at::randn_like(output);
      expect_close(gradient_of(output, ours->weight, direction),
                   gradient_of(theirs, weight, direction.to(at::kDouble)).to(at::kFloat),
                   "gradient of the weight");
    }
  }
  at::set_num_threads(threads);
}

TEST(Convolution, CanBeDifferentiatedTwice) {
  Conv2d ours(torch::nn::Conv2dOptions(2, 3, 3).padding(1).bias(false));
  const at::Tensor weight = ours->weight.detach().clone().requires_grad_();
  const at::Tensor x = variable({16, 2, 4, 4});
  const auto second = [&](const at::Tensor& output, const at::Tensor& of) {
    const at::Tensor first = gradient_of(output, x, 2 * output, /*create_graph=*/true);
    return gradient_of(first.square().sum(), of, at::ones({}));
  };
  expect_close(second(ours(x), ours->weight), second(at::conv2d(x, weight, {}, 1, 1), weight),
               "second derivative");
}

TEST(Convolution, ACloneIsItsOwn) {
  Conv2d ours(torch::nn::Conv2dOptions(2, 3, 3).bias(false));
  const auto copy = std::dynamic_pointer_cast<Conv2dImpl>(ours->clone());
  ASSERT_NE(copy, nullptr);
  EXPECT_TRUE(copy->weight.equal(ours->weight));
  EXPECT_FALSE(copy->weight.is_alias_of(ours->weight));
  EXPECT_TRUE(copy->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(copy->weight.requires_grad());
}

TEST(Embedding, EqualsLibTorchsBitForBit) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const at::Tensor table = at::randn({9, 5}, dtype).requires_grad_();
    for (const int64_t padding_id : {-1, 0, 8}) {
      for (const auto& sizes : {std::vector<int64_t>{40}, {4, 7}, {0}}) {
        const at::Tensor ids = at::randint(9, sizes, at::kLong);
        const at::Tensor ours = ops::embedding(table, ids, padding_id);
        const at::Tensor theirs = at::embedding(table, ids, padding_id);
        EXPECT_TRUE(ours.equal(theirs));
        const at::Tensor direction = at::randn_like(theirs);
        EXPECT_TRUE(gradient_of(ours, table, direction).equal(gradient_of(theirs, table, direction)));
        const auto second = [&](const at::Tensor& output) {
          const at::Tensor first = gradient_of(output, table, output * output, /*create_graph=*/true);
          return gradient_of(first.square().sum(), table, at::ones({}, dtype));
        };
        if (!ids.numel()) continue;
        expect_close(second(ours).to(at::kFloat), second(theirs).to(at::kFloat), "second derivative");
      }
    }
  }
  const at::Tensor table = variable({9, 5}), few = at::randint(9, {4}, at::kInt), outside = at::full({1}, 9);
  EXPECT_TRUE(ops::embedding(table, few).equal(at::embedding(table, few)));
  EXPECT_THROW(ops::embedding(table, outside), c10::Error);
}

TEST(Linear, EqualsLibTorchsWithItsDerivatives) {
  at::manual_seed(1);
  const at::Tensor weight = variable({4, 5}), bias = variable({4});
  for (const auto& sizes : {std::vector<int64_t>{7, 5}, {2, 3, 5}}) {
    const at::Tensor x = variable(sizes);
    const at::Tensor ours = linear(x, weight, bias), theirs = at::linear(x, weight, bias);
    EXPECT_TRUE(ours.equal(theirs));
    const at::Tensor direction = at::randn_like(theirs);
    for (const at::Tensor& of : {x, weight, bias}) {
      expect_close(gradient_of(ours, of, direction), gradient_of(theirs, of, direction), "gradient");
    }
    const auto second = [&](const at::Tensor& output, const at::Tensor& of) {
      const at::Tensor first = gradient_of(output, x, 2 * output, /*create_graph=*/true);
      return gradient_of(first.square().sum(), of, at::ones({}));
    };
    for (const at::Tensor& of : {x, weight, bias}) {
      expect_close(second(ours, of), second(theirs, of), "second derivative");
    }
  }
}

TEST(Linear, ComplexNumbersHaveConjugateGradients) {
  at::manual_seed(1);
  const auto complex = [](at::IntArrayRef sizes) {
    return at::randn(sizes, at::TensorOptions(at::kComplexFloat)).requires_grad_();
  };
  const at::Tensor x = complex({7, 5}), weight = complex({4, 5}), bias = complex({4});
  const at::Tensor ours = linear(x, weight, bias), theirs = at::linear(x, weight, bias);
  const at::Tensor direction = at::randn_like(theirs);
  for (const at::Tensor& of : {x, weight, bias}) {
    EXPECT_TRUE(gradient_of(ours, of, direction).allclose(gradient_of(theirs, of, direction), 1e-4, 1e-4));
  }
}

// As at::linear does: what no gradient needs may change between forward and backward, what one needs may not.
TEST(Linear, KeepsWhatItsGradientsNeed) {
  const at::Tensor weight = variable({4, 5}), bias = variable({4});
  const auto change = [](const at::Tensor& tensor) {
    const at::NoGradGuard no_grad;
    tensor.add_(1);
  };
  const at::Tensor constant = at::randn({7, 5}), x = variable({7, 5});
  const at::Tensor first = linear(constant, weight, bias).sum();
  change(weight);
  EXPECT_NO_THROW(first.backward());
  const at::Tensor second = linear(x, weight, bias).sum();
  change(weight);
  EXPECT_THROW(second.backward(), c10::Error);
  const at::Tensor frozen = weight.detach();
  const at::Tensor third = linear(x, frozen, bias).sum();
  change(x);
  EXPECT_NO_THROW(third.backward());
}

TEST(Linear, WorksWithoutABias) {
  const at::Tensor x = variable({5, 7}), weight = variable({3, 7});
  const at::Tensor ours = ops::linear(x, weight, at::Tensor()), theirs = at::linear(x, weight);
  expect_close(ours, theirs, "output");
  const at::Tensor direction = at::randn({5, 3});
  expect_close(gradient_of(ours, x, direction), gradient_of(theirs, x, direction), "gradient of the input");
  expect_close(gradient_of(ours, weight, direction), gradient_of(theirs, weight, direction),
               "gradient of the weight");
}

TEST(StdLayerNorm, EqualsWhatItIsMadeOf) {
  at::manual_seed(3);
  const auto numbers = at::TensorOptions().dtype(at::kDouble);
  for (const double eps : {1e-6, .3}) {  // the larger one shows in the gradients
    for (const auto& [count, width] : std::vector<std::pair<int64_t, int64_t>>{{6, 2}, {6, 5}, {150, 48}}) {
      const at::Tensor x = at::randn({count, width}, numbers).mul_(.5).requires_grad_();
      const at::Tensor alpha = at::randn({width}, numbers).requires_grad_(),
                       bias = at::randn({width}, numbers).requires_grad_();
      const at::Tensor theirs = alpha * (x - x.mean(-1, true)) / (x.std(-1, true, true) + eps) + bias;
      const at::Tensor ours = std_layer_norm(x, alpha, bias, eps);
      EXPECT_TRUE(ours.allclose(theirs, 1e-12, 1e-12));
      const at::Tensor direction = at::randn({count, width}, numbers);
      for (const at::Tensor& input : {x, alpha, bias}) {
        EXPECT_TRUE(
            gradient_of(ours, input, direction).allclose(gradient_of(theirs, input, direction), 1e-9, 1e-9));
      }
    }
  }
  const at::Tensor rows = at::full({2, 4}, 3.F).requires_grad_(), ones = at::ones({4});
  const at::Tensor flat = std_layer_norm(rows, ones, ones, 1e-6);
  EXPECT_TRUE(flat.equal(at::ones({2, 4})));  // equal values: no deviation
  EXPECT_TRUE(gradient_of(flat, rows, at::randn({2, 4})).isfinite().all().item<bool>());
  EXPECT_EQ(std_layer_norm(at::empty({0, 4}), ones, ones, 1e-6).sizes(), (std::vector<int64_t>{0, 4}));
  const at::Tensor x = variable({2, 4});
  EXPECT_THROW(gradient_of(std_layer_norm(x, ones, ones, 1e-6), x, at::ones({2, 4}), /*create_graph=*/true),
               c10::Error);
}

/// ops::dropout beside at::dropout after the same `singles` draws of one word each.
void expect_torchs_dropout(const at::Tensor& values, double p, int64_t singles) {
  const at::Tensor x = values.detach().requires_grad_(), direction = at::randn_like(x);
  const auto run = [&](const auto& dropout) {
    at::manual_seed(5);
    at::rand({singles});
    const at::Tensor y = dropout();
    const at::Tensor next = at::rand({3});
    return std::vector<at::Tensor>{y, gradient_of(y, x, direction), next};
  };
  const auto expected = run([&] { return at::dropout(x, p, true); });
  const auto found = run([&] { return ops::dropout(x, p); });
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(found[i].equal(expected[i])) << i << " of " << x.sizes() << ", p " << p;
  EXPECT_EQ(found[0].strides(), expected[0].strides());
}

TEST(Dropout, HasTheBitsOfTorchs) {
  EXPECT_TRUE(draws_as_random_mask());  // or every call goes to at::dropout
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t size : {1, 311, 312, 313, 624, 5000, 100'000}) {
      const at::Tensor x = at::randn({size}, dtype);
      for (const double p : {0.1, 0.5, 0.9, 1e-12}) expect_torchs_dropout(x, p, size % 7);
    }
  }
  expect_torchs_dropout(at::randn({3, 0}), 0.1, 1);
  expect_torchs_dropout(at::randn({}), 0.5, 2);
  expect_torchs_dropout(at::randn({30, 20}).t(), 0.1, 1);
  expect_torchs_dropout(at::randn({30, 20}).slice(1, 3, 9), 0.1, 1);
  expect_torchs_dropout(at::randn({4, 3, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast), 0.1, 1);
  expect_torchs_dropout(at::randn({40}).to(at::kBFloat16), 0.1, 1);
  expect_torchs_dropout(at::randn({40}), 1, 1);
  const at::Tensor x = at::randn({2000});
  EXPECT_TRUE(dropout(x, 0).is_same(x));
}

TEST(Dropout, AddsAResidualWithTheSameBits) {
  at::manual_seed(1);
  for (const double p : {0.0, 0.1, 1.0}) {
    for (const bool plain : {true, false}) {
      const at::Tensor x = plain ? variable({40, 30}) : variable({30, 40}).t(), residual = variable({40, 30});
      const at::Tensor direction = at::randn({40, 30});
      const auto run = [&](const auto& operation) {
        at::manual_seed(5);
        const at::Tensor y = operation();
        return std::vector<at::Tensor>{y, gradient_of(y, x, direction), gradient_of(y, residual, direction)};
      };
      const auto expected = run([&] { return at::dropout(x, p, p > 0) + residual; });
      const auto found = run([&] { return dropout_add(x, p, residual); });
      for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i << ", p " << p;
    }
  }
  const at::Tensor x = at::randn({4, 3}), row = variable({3});  // broadcast
  EXPECT_TRUE(gradient_of(dropout_add(x, 0.5, row), row, at::ones({4, 3})).equal(at::full({3}, 4.F)));
}

TEST(Dropout, KeepsNaNAndInfinityAsTorchDoes) {
  const at::Tensor x = at::full({400}, std::numeric_limits<float>::infinity());
  at::manual_seed(2);
  const at::Tensor expected = at::dropout(x, 0.5, true);
  at::manual_seed(2);
  EXPECT_TRUE(dropout(x, 0.5).allclose(expected, 0, 0, /*equal_nan=*/true));
}

TEST(Dropout, ThreadsChangeNothing) {
  const at::Tensor x = at::randn({200'000});
  const int before = at::get_num_threads();
  std::vector<at::Tensor> found;
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    at::manual_seed(3);
    found.push_back(dropout(x, 0.1));
  }
  at::set_num_threads(before);
  EXPECT_TRUE(found[0].equal(found[1]));
}

TEST(Dropout, CanBeDifferentiatedTwice) {
  at::manual_seed(4);
  const at::Tensor x = variable({50}), direction = at::randn({50});
  const at::Tensor y = dropout(x, 0.4).square();
  const at::Tensor first = gradient_of(y, x, direction, /*create_graph=*/true);
  const at::Tensor kept = y.detach().ne(0).to(at::kFloat) / 0.6F;
  expect_close(gradient_of(first, x, at::ones({50})), 2 * kept * kept * direction, "second derivative");
  const at::Tensor once = dropout(x, 0.4).sum();
  once.backward();
  EXPECT_THROW(once.backward(), c10::Error);
}

TEST(StdLayerNorm, ThreadsChangeNoBit) {
  at::manual_seed(8);
  const at::Tensor x = variable({1000, 512}), alpha = variable({512}), bias = variable({512});
  const at::Tensor direction = at::randn({1000, 512});
  const int before = at::get_num_threads();
  std::vector<std::vector<at::Tensor>> found;
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    const at::Tensor y = std_layer_norm(x, alpha, bias, 1e-6);
    found.push_back(
        {y, gradient_of(y, x, direction), gradient_of(y, alpha, direction), gradient_of(y, bias, direction)});
  }
  at::set_num_threads(before);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(found[0][i].equal(found[1][i])) << i;
}

TEST(ForwardMode, TangentsPassThrough) {
  at::manual_seed(1);
  const uint64_t level = torch::autograd::ForwardADLevel::get_next_idx();
  {
    const auto tangent = [&](const at::Tensor& dual) { return std::get<1>(at::_unpack_dual(dual, level)); };
    const auto dual = [&](at::IntArrayRef sizes) {
      return at::_make_dual(at::randn(sizes), at::randn(sizes), static_cast<int64_t>(level));
    };
    const at::Tensor x = dual({4, 3}), weight = variable({2, 3}), bias = variable({2});
    expect_close(tangent(ops::linear(x, weight, bias)), tangent(at::linear(x, weight, bias)), "linear");
    const at::Tensor ids = at::randint(5, {7}, at::kLong), table = dual({5, 3}).requires_grad_();
    expect_close(tangent(ops::embedding(table, ids)), tangent(at::embedding(table, ids)), "embedding");
    Conv2d ours(torch::nn::Conv2dOptions(3, 4, 3).padding(1).bias(false));
    const at::Tensor images = dual({16, 3, 4, 4});
    at::manual_seed(6);
    const at::Tensor expected = at::dropout(x, 0.5, true);
    at::manual_seed(6);
    expect_close(tangent(ops::dropout(x, 0.5)), tangent(expected), "dropout");
    expect_close(tangent(ours(images)), tangent(at::conv2d(images, ours->weight, {}, 1, 1)), "convolution");
  }
  torch::autograd::ForwardADLevel::release_idx(level);
}

TEST(StdLayerNorm, OneFactorForAllColumnsIsBroadcast) {
  at::manual_seed(3);
  const at::Tensor x = variable({6, 8}), alpha = variable({1}), bias = variable({1});
  const at::Tensor theirs = alpha * (x - x.mean(-1, true)) / (x.std(-1, true, true) + 1e-6) + bias;
  const at::Tensor ours = std_layer_norm(x, alpha, bias, 1e-6), direction = at::randn({6, 8});
  expect_close(ours, theirs, "output");
  for (const at::Tensor& of : {x, alpha, bias})
    expect_close(gradient_of(ours, of, direction), gradient_of(theirs, of, direction), "gradient");
  EXPECT_THROW(std_layer_norm(x, at::ones({9}), at::ones({9}), 1e-6), c10::Error);
}

TEST(Convolution, RefusesWhatLibTorchRefuses) {
  const auto refused = [](torch::nn::Conv2dOptions options, at::IntArrayRef sizes) {
    Conv2d conv(options.bias(false));
    EXPECT_THROW(conv(at::randn(sizes)), c10::Error);
  };
  refused(torch::nn::Conv2dOptions(4, 8, 2).stride(2), {16, 4, 1, 1});
  refused(torch::nn::Conv2dOptions(4, 8, 3).stride(3), {16, 4, 5, 2});
  refused(torch::nn::Conv2dOptions(4, 8, 3).stride(0), {16, 4, 5, 5});
  refused(torch::nn::Conv2dOptions(4, 8, 3).padding(-1), {16, 4, 6, 6});
}

}  // namespace
}  // namespace lockstep::ops
