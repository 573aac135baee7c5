#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/serialize.h>

#include <cmath>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/autocast.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/memory/chunk_norm.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/optim/sgd.h"

namespace lockstep {
namespace {

TEST(ParameterGroups, FollowTheTrainersRule) {
  for (const char* name : {"classifier.weight", "bert.embeddings.word_embeddings.weight", "normal.weight"}) {
    EXPECT_TRUE(takes_weight_decay(name)) << name;
  }
  for (const char* name : {"classifier.bias", "bert.embeddings.LayerNorm.weight", "layer.0.norm.weight",
                           "norm", "layer.0.input_norm.weight", "encoder.RMSNorm.weight"}) {
    EXPECT_FALSE(takes_weight_decay(name)) << name;
  }
}

TEST(ParameterGroups, LeaveOutFrozenParametersAndEmptyGroups) {
  const torch::nn::Linear linear(3, 2);
  const auto options = torch::optim::AdamWOptions(0.5).weight_decay(0.1);
  auto groups = parameter_groups(*linear, options);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].params()[0].sizes(), linear->weight.sizes());
  EXPECT_EQ(static_cast<torch::optim::AdamWOptions&>(groups[0].options()).weight_decay(), 0.1);
  EXPECT_EQ(static_cast<torch::optim::AdamWOptions&>(groups[1].options()).weight_decay(), 0);
  EXPECT_EQ(groups[1].options().get_lr(), 0.5);
  linear->bias.requires_grad_(false);
  EXPECT_EQ(parameter_groups(*linear, options).size(), 1u);
}

// A gradient in another memory layout than its parameter gives the same step.
TEST(FusedAdamW, GradientLayoutDoesNotMatter) {
  const at::Tensor values = at::rand({4, 6}), grad = at::rand({4, 6});
  const auto after_step = [&](const at::Tensor& gradient) {
    const at::Tensor parameter = values.clone().requires_grad_();
    parameter.mutable_grad() = gradient;
    FusedAdamW optimizer({parameter}, torch::optim::AdamWOptions(0.1));
    optimizer.step();
    return parameter.detach().clone();
  };
  const at::Tensor expected = after_step(grad.clone());
  EXPECT_FALSE(at::equal(expected, values));
  EXPECT_TRUE(at::equal(expected, after_step(grad.t().contiguous().t())));
  EXPECT_TRUE(
      at::equal(after_step(at::full_like(values, 2)), after_step(at::ones({1}).mul(2).expand({4, 6}))));
}

TEST(FusedAdamW, StateIsSavedAndLoadedAsTorchs) {
  const at::Tensor parameter = at::rand({5}).requires_grad_();
  const at::Tensor gradient = at::rand({5});
  const auto step = [&](FusedAdamW& optimizer, const at::Tensor& p) {
    p.mutable_grad() = gradient;
    optimizer.step();
  };
  FusedAdamW first({parameter}, torch::optim::AdamWOptions(0.1));
  step(first, parameter);
  std::stringstream stream;
  torch::save(first, stream);
  const at::Tensor other = parameter.detach().clone().requires_grad_();
  FusedAdamW second({other}, torch::optim::AdamWOptions(0.3));
  torch::load(second, stream);
  step(first, parameter);
  step(second, other);
  EXPECT_TRUE(at::equal(parameter, other));
}

// A checkpoint of contiguous parameters goes on with channels_last ones, as with LibTorch's optimizers.
template <class Ours, class Theirs>
void expect_state_in_another_layout_is_followed(const auto& options) {
  const at::Tensor start = at::rand({4, 3, 2, 5}), gradient = at::rand({4, 3, 2, 5});
  const auto train = [&]<class Optimizer>(const Optimizer*) {
    const at::Tensor before = start.clone().requires_grad_();
    Optimizer first({before}, options);
    before.mutable_grad() = gradient.clone();
    first.step();
    std::stringstream stream;
    torch::save(first, stream);
    const at::Tensor after = before.detach().clone(at::MemoryFormat::ChannelsLast).requires_grad_();
    Optimizer second({after}, options);
    torch::load(second, stream);
    after.mutable_grad() = (gradient * 2).contiguous(at::MemoryFormat::ChannelsLast);
    second.step();
    return after.detach();
  };
  EXPECT_TRUE(
      at::allclose(train(static_cast<Ours*>(nullptr)), train(static_cast<Theirs*>(nullptr)), 1e-5, 1e-6));
}

TEST(FusedOptimizers, StateInAnotherMemoryFormatIsFollowed) {
  expect_state_in_another_layout_is_followed<FusedAdamW, torch::optim::AdamW>(
      torch::optim::AdamWOptions(0.1).amsgrad(true));
  expect_state_in_another_layout_is_followed<FusedSGD, torch::optim::SGD>(
      torch::optim::SGDOptions(0.1).momentum(0.9));
}

TEST(FusedSGD, IsTorchsAndCanTakeItsPlace) {
  const at::Tensor start = at::rand({4, 3});
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  const at::Tensor ours = start.clone().requires_grad_(), theirs = start.clone().requires_grad_();
  FusedSGD fused({ours}, options);
  torch::optim::SGD plain({theirs}, options);
  for (int step = 0; step < 3; ++step) {
    ours.mutable_grad() = at::full_like(ours, step + 1).t().contiguous().t();  // in another layout
    theirs.mutable_grad() = at::full_like(theirs, step + 1);
    fused.step();
    plain.step();
  }
  EXPECT_TRUE(at::allclose(ours, theirs, 1e-6, 1e-7));
  // What one saves, the other goes on from.
  std::stringstream stream;
  torch::save(fused, stream);
  const at::Tensor next = ours.detach().clone().requires_grad_();
  torch::optim::SGD taken_over({next}, torch::optim::SGDOptions(0.5));
  torch::load(taken_over, stream);
  next.mutable_grad() = at::ones_like(next);
  ours.mutable_grad() = at::ones_like(ours);
  taken_over.step();
  fused.step();
  EXPECT_TRUE(at::allclose(ours, next, 1e-6, 1e-7));
  // Gradients that stay where they are.
  const void* const place = ours.grad().const_data_ptr();
  fused.zero_grad(/*set_to_none=*/false);
  EXPECT_EQ(ours.grad().const_data_ptr(), place);
  EXPECT_EQ(ours.grad().abs().sum().item<double>(), 0);
}

/// A column block of a larger matrix, transposed: nothing around it may change.
template <class Fused, class Plain, class Options>
void check_parameter_with_gaps(const Options& options) {
  const auto make = [](const at::Tensor& around) {
    return around.narrow(1, 2, 4).t().detach().requires_grad_();
  };
  const at::Tensor around = at::zeros({5, 8}), plain_around = at::zeros({5, 8});
  const at::Tensor ours = make(around), theirs = make(plain_around);
  Fused fused({ours}, options);
  Plain plain({theirs}, options);
  for (int step = 0; step < 3; ++step) {
    ours.mutable_grad() = at::arange(20, at::kFloat).view({4, 5}) + step;
    theirs.mutable_grad() = ours.grad().clone();
    fused.step();
    plain.step();
  }
  EXPECT_TRUE(at::allclose(around, plain_around, 1e-5, 1e-6));
  EXPECT_EQ(around.narrow(1, 6, 2).count_nonzero().template item<int64_t>(), 0);
}

TEST(FusedOptimizers, AParameterWithGapsLeavesItsNeighborsAlone) {
  check_parameter_with_gaps<FusedAdamW, torch::optim::AdamW>(torch::optim::AdamWOptions(0.1).amsgrad(true));
  check_parameter_with_gaps<FusedSGD, torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
}

TEST(ClipGradNorm, CountsImaginaryParts) {
  const at::Tensor parameter = at::zeros({1}, at::kComplexFloat).requires_grad_();
  parameter.mutable_grad() = at::complex(at::full({1}, 3.0F), at::full({1}, 4.0F));
  EXPECT_DOUBLE_EQ(grad_norm({parameter}), 5);
  parameter.mutable_grad() = parameter.grad().conj();
  EXPECT_DOUBLE_EQ(clip_grad_norm_({parameter}, 1), 5);
  EXPECT_NEAR(grad_norm({parameter}), 1, 1e-5);
}

TEST(ClipGradNorm, TakesSparseGradients) {
  const auto gradient = [] {
    const at::Tensor rows = at::tensor({1, 1, 0}, at::kLong).view({1, 3});  // row 1 twice
    return at::sparse_coo_tensor(rows, at::arange(6, at::kFloat).view({3, 2}), {4, 2});
  };
  const at::Tensor sparse = at::zeros({4, 2}).requires_grad_(), dense = at::zeros({4, 2}).requires_grad_();
  sparse.mutable_grad() = gradient();
  dense.mutable_grad() = gradient().to_dense();
  EXPECT_NEAR(clip_grad_norm_({sparse}, 2.0), clip_grad_norm_({dense}, 2.0), 1e-6);
  EXPECT_TRUE(at::allclose(sparse.grad().to_dense(), dense.grad()));
}

TEST(ClipGradNorm, HasTheArgumentsOfLibTorchs) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double norm_type : {-kInfinity, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, kInfinity}) {
    const at::Tensor ours = at::zeros({3, 4}).requires_grad_(), theirs = at::zeros({3, 4}).requires_grad_();
    ours.mutable_grad() = at::arange(12, at::kFloat).view({3, 4}) - 5;
    theirs.mutable_grad() = ours.grad().clone();
    const double expected = torch::nn::utils::clip_grad_norm_({theirs}, 2.0, norm_type);
    EXPECT_NEAR(clip_grad_norm_({ours}, 2.0, norm_type), expected, 1e-4);
    EXPECT_TRUE(at::allclose(ours.grad(), theirs.grad()));
  }
  const at::Tensor parameter = at::zeros({1}).requires_grad_();
  parameter.mutable_grad() = at::full({1}, std::numeric_limits<float>::infinity());
  EXPECT_THROW(clip_grad_norm_({parameter}, 1.0, 2.0, /*error_if_nonfinite=*/true), Error);
  EXPECT_TRUE(std::isinf(parameter.grad().item<float>()));
}

/// What is computed for tensors on a GPU, here on the CPU.
TEST(ClipGradNorm, IsComputedWhereTheGradientIs) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<at::Tensor> parameters, gradients;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kComplexFloat}) {
    gradients.push_back((at::arange(5000, at::kFloat) - 2500.5).to(dtype));
    parameters.push_back(at::zeros({5000}, dtype).requires_grad_());
    parameters.back().mutable_grad() = gradients.back();
  }
  for (const double norm_type : {-kInfinity, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, kInfinity}) {
    const double expected = grad_norm(parameters, norm_type);
    const auto sums = detail::sum_powers_on_device(gradients, norm_type);
    EXPECT_NEAR(detail::norm_of_chunks(sums, {1, 1, 1}, norm_type), expected, expected * 1e-9) << norm_type;
  }
  EXPECT_TRUE(detail::sum_powers_on_device({}, 2).empty());
  // A device whose memory the host cannot read: an error, no crash.
  const at::Tensor parameter = at::zeros({3}, at::kMeta).requires_grad_();
  parameter.mutable_grad() = at::ones({3}, at::kMeta);
  EXPECT_THROW(grad_norm({parameter}), c10::Error);
  EXPECT_THROW(clip_grad_norm_({parameter}, 1.0), c10::Error);
  EXPECT_THROW(scale_and_clip_grad_norm_({parameter}, 0.5, 1.0), c10::Error);
}

TEST(ClipGradNorm, HasTheSameBitsWithAnyNumberOfThreads) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> parameters;
  for (const int64_t count : {5, 70'001, 3'000'017}) {
    parameters.push_back(at::zeros({count}).requires_grad_());
    parameters.back().mutable_grad() = (at::arange(count, at::kDouble) * 0.37).sin().to(at::kFloat);
  }
  for (const double norm_type : {1.0, 2.0, 3.0, kInfinity}) {
    at::set_num_threads(1);
    const double expected = grad_norm(parameters, norm_type);
    EXPECT_GT(expected, 0);
    for (const int more : {2, 3, 8}) {
      at::set_num_threads(more);
      EXPECT_EQ(grad_norm(parameters, norm_type), expected) << more << " threads, norm " << norm_type;
    }
  }
  at::set_num_threads(threads);
}

TEST(FusedAdamW, ClosureIsEvaluatedWithGradients) {
  const at::Tensor parameter = at::ones({3}).requires_grad_();
  FusedAdamW optimizer({parameter});
  const at::NoGradGuard no_grad;
  const at::Tensor loss = optimizer.step([&] {
    const at::Tensor sum = parameter.sum();
    sum.backward();
    return sum;
  });
  EXPECT_EQ(loss.item<double>(), 3);
  EXPECT_LT(parameter.max().item<double>(), 1);
}

// The kernels pass autograd by; a graph that needs the old parameter must be told all the same.
TEST(FusedOptimizers, AStepBetweenForwardAndBackwardIsAnError) {
  const auto step_between = [](auto&& make) {
    const at::Tensor parameter = at::rand({3}).requires_grad_();
    auto optimizer = make(parameter);
    const at::Tensor loss = (parameter * parameter).sum();
    parameter.mutable_grad() = at::ones({3});
    optimizer.step();
    EXPECT_THROW(loss.backward(), c10::Error);
  };
  step_between([](const at::Tensor& p) { return FusedSGD({p}, torch::optim::SGDOptions(0.1)); });
  step_between([](const at::Tensor& p) { return FusedAdamW({p}, torch::optim::AdamWOptions(0.1)); });
}

TEST(ExponentialMovingAverage, IsUsedForAScopeAndTheWeightsComeBack) {
  torch::nn::Linear module(3, 2);
  ExponentialMovingAverage average(*module, 0.5);
  average.update();
  const at::Tensor first = module->weight.detach().clone();
  const void* const memory = module->weight.const_data_ptr();
  {
    const at::NoGradGuard no_grad;
    module->weight.add_(2);
  }
  average.update();
  const at::Tensor last = module->weight.detach().clone();
  {
    const auto averaged = average.use();
    EXPECT_TRUE(at::allclose(module->weight, first + 1));
    EXPECT_TRUE(module->weight.requires_grad());
    EXPECT_THROW(average.update(), Error);
    EXPECT_THROW(const auto again = average.use(), Error);
    EXPECT_THROW(average.state_dict(), Error);
  }
  EXPECT_TRUE(module->weight.equal(last));
  EXPECT_EQ(module->weight.const_data_ptr(), memory);
  EXPECT_EQ(average.num_updates(), 2);
}

TEST(ExponentialMovingAverage, FollowsAModuleThatBecomesDouble) {
  torch::nn::Linear module(3, 2);
  ExponentialMovingAverage average(*module, 0.5);
  average.update();
  const at::Tensor first = module->weight.detach().clone();
  module->to(at::kDouble);
  {
    const at::NoGradGuard no_grad;
    module->weight.add_(2);
  }
  average.update();
  const auto averaged = average.use();
  EXPECT_EQ(module->weight.scalar_type(), at::kDouble);
  EXPECT_TRUE(at::allclose(module->weight, first.to(at::kDouble) + 1));
}

TEST(ExponentialMovingAverage, TakesBuffersIfAsked) {
  torch::nn::BatchNorm1d norm(2);
  ExponentialMovingAverage parameters(*norm, 0.5), all(*norm, 0.5, /*use_buffers=*/true);
  for (const double mean : {1.0, 3.0}) {
    norm->running_mean.fill_(mean);
    norm->num_batches_tracked.fill_(7);
    parameters.update();
    all.update();
  }
  {
    const auto averaged = parameters.use();
    EXPECT_TRUE(norm->running_mean.eq(3).all().item<bool>());
  }
  {
    const auto averaged = all.use();
    EXPECT_TRUE(norm->running_mean.eq(2).all().item<bool>());
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 7);  // a count is not averaged
  }
  EXPECT_TRUE(norm->running_mean.eq(3).all().item<bool>());
  EXPECT_TRUE(all.state_dict().tensors.contains("running_var"));
}

TEST(ExponentialMovingAverage, RefusesWhatDoesNotFit) {
  torch::nn::Linear module(3, 2), other(4, 2);
  EXPECT_THROW(ExponentialMovingAverage(*module, 1.5), ValueError);
  ExponentialMovingAverage average(*module, 0.5), theirs(*other, 0.5);
  EXPECT_THROW(average.load_state_dict(theirs.state_dict()), ValueError);
  EXPECT_THROW(average.load_state_dict({}), ValueError);
}

TEST(AutocastGuard, SetsBfloat16ForItsScopeAndNests) {
  const at::Tensor x = at::rand({2, 4}), weight = at::rand({3, 4});
  const auto dtype = [&] { return at::linear(x, weight).scalar_type(); };
  {
    const AutocastGuard on(true);
    EXPECT_EQ(dtype(), at::kBFloat16);
    {
      const AutocastGuard off(false);
      EXPECT_EQ(dtype(), at::kFloat);
    }
    EXPECT_EQ(dtype(), at::kBFloat16);
  }
  EXPECT_EQ(dtype(), at::kFloat);
  const AutocastGuard off(false);
  EXPECT_EQ(dtype(), at::kFloat);
}

// The cache of weights in bfloat16 must not outlive the guard, or a step of the optimizer would be ignored.
TEST(AutocastGuard, ForgetsCachedWeights) {
  const at::Tensor x = at::ones({1, 4}), weight = at::ones({1, 4}).requires_grad_();
  const auto output = [&] {
    const AutocastGuard on(true);
    return at::linear(x, weight).item<double>();
  };
  EXPECT_EQ(output(), 4);
  {
    const at::NoGradGuard no_grad;
    weight.fill_(2);
  }
  EXPECT_EQ(output(), 8);
}

TEST(ParameterGroups, OptionsThatEqualTheClassDefaultsStay) {
  const torch::nn::Linear linear(3, 2);
  const auto options = torch::optim::SGDOptions(0.5).weight_decay(0.1);
  const auto groups = parameter_groups(*linear, options, {{.pattern = "bias", .learning_rate = 1e-3}});
  FusedSGD optimizer(groups, options);
  set_group_options(optimizer, groups);
  const auto& bias = static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[1].options());
  EXPECT_EQ(bias.weight_decay(), 0);
  EXPECT_EQ(bias.lr(), 1e-3);
}

TEST(ExponentialMovingAverage, FollowsParametersThatGetOtherMemory) {
  torch::nn::Linear module(3, 2), other(3, 2);
  ExponentialMovingAverage average(*module, 0.5);
  std::stringstream file;
  torch::save(other, file);
  torch::load(module, file);
  average.update();
  EXPECT_TRUE(average.state_dict().tensors.at("weight").equal(other->weight));
  {
    const at::NoGradGuard no_grad;
    module->weight.add_(2);
  }
  average.update();
  const auto averaged = average.use();
  EXPECT_TRUE(at::allclose(module->weight, other->weight + 1));
}

/// An embedding that has grown since: the kernels would read beyond the end of its state.
template <class Optimizer>
void check_state_of_another_shape(const auto& options) {
  const auto expect_error = [](const auto& call) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const ValueError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("of a parameter of shape [7, 3] has the shape [4, 3]"), std::string::npos) << text;
    }
  };
  const at::Tensor before = at::ones({4, 3}).requires_grad_(), after = at::ones({7, 3}).requires_grad_();
  before.mutable_grad() = at::ones({4, 3});
  after.mutable_grad() = at::ones({7, 3});
  Optimizer saved({before}, options), grown({after}, options);
  saved.step();
  std::stringstream stream;
  torch::save(saved, stream);
  expect_error([&] { torch::load(grown, stream); });
  EXPECT_TRUE(grown.state().empty());
  // However the state gets there.
  grown.state()[after.unsafeGetTensorImpl()] = saved.state().at(before.unsafeGetTensorImpl())->clone();
  expect_error([&] { grown.step(); });
  grown.state().clear();
  after.mutable_grad() = before.grad();
  expect_error([&] { grown.step(); });
  EXPECT_TRUE(grown.state().empty());
  EXPECT_TRUE(at::equal(after, at::ones({7, 3})));
}

TEST(FusedOptimizers, AStateOfAnotherShapeIsRefused) {
  check_state_of_another_shape<FusedAdamW>(torch::optim::AdamWOptions(0.1).amsgrad(true));
  check_state_of_another_shape<FusedSGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// A divided state lies in the order of a parameter's memory, which may be another one now.
TEST(OptimizerState, PartsThatWereSavedInAnotherMemoryFormatAreConverted) {
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  const at::Tensor values = at::arange(24, at::kFloat), shape = at::zeros({2, 3, 2, 2});
  const at::Tensor rows = values.view(shape.sizes()),
                   pixels = values.as_strided(shape.sizes(), {12, 1, 6, 3});
  const auto load = [&](at::MemoryFormat format, const std::optional<std::string>& strides) {
    const at::Tensor parameter = shape.clone(format).requires_grad_();
    FusedSGD optimizer({parameter}, options);
    std::vector<StateDict> parts(2, optimizer_state_dict(optimizer));
    for (const int64_t part : {0, 1}) {
      StateDict& state = parts[static_cast<size_t>(part)];
      const int64_t begin = 10 * part, end = part == 0 ? 10 : 24;
      state.tensors["state.0.momentum_buffer"] = values.slice(0, begin, end);
      state.scalars["state.0.begin"] = begin;
      state.scalars["state.0.end"] = end;
      if (strides) state.scalars["state.0.strides"] = *strides;
    }
    load_optimizer_state_dict(optimizer, parts);
    return optimizer_state_dict(optimizer).tensors.at("state.0.momentum_buffer");
  };
  constexpr auto kRows = at::MemoryFormat::Contiguous, kPixels = at::MemoryFormat::ChannelsLast;
  for (const auto format : {kRows, kPixels}) {
    EXPECT_TRUE(at::equal(load(format, "12,4,2,1"), rows));
    EXPECT_TRUE(at::equal(load(format, "12,1,6,3"), pixels));
    for (const char* const other : {"4,1", "8,4,2,1", "12,4,2,x", "12,4,2,0", "", "12,4,2,99999999999"})
      EXPECT_THROW(load(format, other), ValueError) << other;
  }
  // What was saved before strides were.
  EXPECT_TRUE(at::equal(load(kRows, std::nullopt), rows));
  EXPECT_TRUE(at::equal(load(kPixels, std::nullopt), pixels));
}

TEST(FusedOptimizers, ARefusedGradientLeavesNoStateBehind) {
  const auto check = [](auto make) {
    const at::Tensor a = at::ones({3}).requires_grad_(), b = at::ones({3}).requires_grad_();
    a.mutable_grad() = at::ones({3});
    b.mutable_grad() = at::ones({3}).to_sparse();
    auto optimizer = make(std::vector<at::Tensor>{a, b});
    EXPECT_THROW(optimizer.step(), ValueError);
    EXPECT_TRUE(optimizer.state().empty());
  };
  check([](auto p) { return FusedSGD(p, torch::optim::SGDOptions(0.1).momentum(0.9)); });
  check([](auto p) { return FusedAdamW(p, torch::optim::AdamWOptions(0.1)); });
}

}  // namespace
}  // namespace lockstep
