// SyncBatchNorm against BatchNorm over the concatenated batch.
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>

#include "lockstep/parallel/sync_batch_norm.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

using torch::nn::BatchNormOptions;

/// Input of a rank: another number of samples on each, `empty` of them none at all. Far from zero, where
/// differences of sums would lose digits.
at::Tensor input_of(int rank, const std::vector<int64_t>& rest, bool with_empty) {
  std::vector<int64_t> sizes{with_empty && rank == 1 ? 0 : 2 + 3 * rank, 3};
  sizes.insert(sizes.end(), rest.begin(), rest.end());
  return wave(sizes, rank) + 2.0;
}

TEST(SyncBatchNorm, EqualsBatchNormOverAll) {
  const int own = world().rank(), size = world().size();
  for (const auto& rest : {std::vector<int64_t>{}, {5}, {4, 3}, {2, 3, 2}}) {
    for (const bool affine : {true, false}) {
      for (const bool with_empty : {false, true}) {
        const auto options = BatchNormOptions(3).affine(affine).momentum(
            with_empty ? std::optional<double>() : std::optional<double>(0.1));
        SyncBatchNorm ours(options);
        BatchNorm whole(options);
        fill_with_waves(*ours);
        fill_with_waves(*whole);
        for (int step = 0; step < 2; ++step) {
          std::vector<at::Tensor> parts;
          for (int r = 0; r < size; ++r) parts.push_back(input_of(r, rest, with_empty) + step);
          const at::Tensor all = at::cat(parts).requires_grad_();
          const at::Tensor input = parts[static_cast<size_t>(own)].clone().requires_grad_();
          const at::Tensor expected = whole->forward(all), found = ours->forward(input);
          const auto first = [&] {
            int64_t rows = 0;
            for (int r = 0; r < own; ++r) rows += parts[static_cast<size_t>(r)].size(0);
            return rows;
          }();
          const auto mine = [&](const at::Tensor& tensor) { return tensor.narrow(0, first, input.size(0)); };
          CHECK_CLOSE(found, mine(expected), 1e-5, 1e-5);
          ours->zero_grad();
          whole->zero_grad();
          const at::Tensor weights = wave(all.sizes(), 9);
          (expected.square() * weights).sum().backward();
          (found.square() * mine(weights)).sum().backward();
          CHECK_CLOSE(input.grad(), mine(all.grad()), 1e-4, 1e-5);
          if (affine) {
            world().all_reduce(ours->weight.grad());
            world().all_reduce(ours->bias.grad());
            CHECK_CLOSE(ours->weight.grad(), whole->weight.grad(), 1e-5, 1e-5);
            CHECK_CLOSE(ours->bias.grad(), whole->bias.grad(), 1e-5, 1e-5);
          }
          CHECK_CLOSE(ours->running_mean, whole->running_mean, 1e-5, 1.0000000000000002e-6);
          CHECK_CLOSE(ours->running_var, whole->running_var, 1e-5, 1.0000000000000002e-6);
        }
        // eval: running statistics, and nothing collective.
        ours->eval();
        whole->eval();
        const at::Tensor input = input_of(0, rest, false);
        if (own == 0) CHECK_CLOSE(ours->forward(input), whole->forward(input), 1e-5, 1e-5);
      }
    }
  }
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    body = register_module("body", torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)),
                                                         torch::nn::BatchNorm2d(4), torch::nn::ReLU()));
    norm = register_module("norm", BatchNorm(BatchNormOptions(4)));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return norm->forward(body->forward(x)).mean({2, 3}); }
  torch::nn::Sequential body{nullptr};
  BatchNorm norm{nullptr};
};
TORCH_MODULE(Net);

/// A model with converted layers under DistributedDataParallel equals the plain one on the whole batch.
TEST(SyncBatchNorm, ConvertedModelUnderDdp) {
  const int own = world().rank(), size = world().size();
  Net model, whole;
  const at::Tensor weight = model->named_parameters()["body.1.weight"];
  const auto keys = model->named_parameters().keys();
  CHECK_TRUE(convert_sync_batchnorm(model).get() == model.get());
  CHECK_TRUE(model->named_parameters()["body.1.weight"].is_same(weight));
  CHECK_TRUE(model->named_parameters().keys() == keys);
  CHECK_TRUE(model->named_buffers().size() == 6);
  CHECK_TRUE(model->norm->process_group().has_value());
  DistributedDataParallel ddp(model);
  for (int step = 0; step < 3; ++step) {
    const auto input = [&](int rank) { return wave({4, 2, 6, 6}, 10 * step + rank); };
    std::vector<at::Tensor> parts;
    for (int r = 0; r < size; ++r) parts.push_back(input(r));
    model->zero_grad();
    whole->zero_grad();
    const auto loss = [](const at::Tensor& y) { return (y.square() * wave(y.sizes(), 0).abs()).sum(); };
    // The weights of the loss start anew with each rank's rows.
    at::Tensor total = at::zeros({});
    const at::Tensor all = whole->forward(at::cat(parts));
    for (int r = 0; r < size; ++r) total = total + loss(all.narrow(0, 4 * r, 4)) / size;
    total.backward();
    loss(ddp(input(own))).backward();
    const auto expected = whole->named_parameters();
    for (const auto& item : model->named_parameters()) {
      CHECK_CLOSE(item.value().grad(), expected[item.key()].grad(), 1e-4, 1e-5);
    }
    for (const auto& item : model->named_buffers()) {
      CHECK_CLOSE(item.value(), whole->named_buffers()[item.key()], 1e-5, 1.0000000000000002e-6);
    }
  }
}

TEST(SyncBatchNorm, WhatCannotBeConvertedIsNamed) {
  struct Fixed : torch::nn::Module {
    Fixed() {
      good = register_module("good", BatchNorm(BatchNormOptions(2)));
      inner = register_module("inner", torch::nn::Sequential(torch::nn::BatchNorm1d(2)));
      bad = register_module("bad", torch::nn::BatchNorm2d(2));
    }
    BatchNorm good{nullptr};
    torch::nn::Sequential inner{nullptr};
    torch::nn::BatchNorm2d bad{nullptr};
  };
  Fixed module;
  check_throws<ValueError>([&] { convert_sync_batchnorm(module); },
                           "cannot convert bad, which is a member of");
  CHECK_TRUE(!module.good->process_group());  // nothing half converted
  torch::nn::BatchNorm1d alone(3);
  check_throws<ValueError>([&] { convert_sync_batchnorm(*alone); }, "the module itself");
  SyncBatchNorm one_value(BatchNormOptions(3));
  check_throws<ValueError>(
      [&] {
        one_value->forward(at::ones({world().rank() == 0 ? 1 : 0, 3}));
      },
      "more than one value per channel over all ranks; this input has 1");
  check_throws<ValueError>(
      [&] {
        one_value->forward(at::ones({2, 4}));
      },
      "must be [batch, 3, ...] but has 2 dimensions and 4 channels");
}

TEST(SyncBatchNorm, IsNotDifferentiableTwice) {
  ONLY_IF(world().size() > 1);
  SyncBatchNorm norm(BatchNormOptions(3));
  const at::Tensor input = wave({4, 3}, world().rank()).requires_grad_();
  const at::Tensor slope = torch::autograd::grad({norm->forward(input).square().sum()}, {input}, {}, true,
                                                 /*create_graph=*/true)[0];
  check_throws<std::exception>([&] { slope.square().sum().backward(); }, "not differentiable twice");
}

TEST(SyncBatchNorm, StatisticsOfHalfPrecisionAreNotRounded) {
  ONLY_IF(world().size() > 1);
  const auto options = BatchNormOptions(3).momentum(1.0);
  SyncBatchNorm ours(options);
  BatchNorm whole(options);
  std::vector<at::Tensor> parts;
  for (int r = 0; r < world().size(); ++r) parts.push_back((wave({8, 3, 5}, r) + 3.0).to(at::kBFloat16));
  ours->forward(parts[static_cast<size_t>(world().rank())]);
  whole->forward(at::cat(parts).to(at::kFloat));
  CHECK_CLOSE(ours->running_mean, whole->running_mean, 0, 1e-5);
  CHECK_CLOSE(ours->running_var, whole->running_var, 1e-4, 1e-6);
}

TEST(SyncBatchNorm, AVarianceThatHalfPrecisionDoesNotHoldIsUsed) {
  ONLY_IF(world().size() > 1);
  for (const bool affine : {true, false}) {
    SyncBatchNorm ours(BatchNormOptions(3).affine(affine));
    BatchNorm whole(BatchNormOptions(3).affine(affine));
    ours->to(at::kHalf);
    std::vector<at::Tensor> parts;
    for (int r = 0; r < world().size(); ++r) parts.push_back((wave({8, 3, 5}, r) * 800 + 100).to(at::kHalf));
    const int own = world().rank();
    const at::Tensor found = ours->forward(parts[static_cast<size_t>(own)]);
    EXPECT_EQ(found.scalar_type(), at::kHalf);
    const at::Tensor expected = whole->forward(at::cat(parts).to(at::kFloat)).narrow(0, 8 * own, 8);
    CHECK_CLOSE(found.to(at::kFloat), expected, 2e-3, 2e-3);
  }
}

}  // namespace
}  // namespace lockstep::testing
