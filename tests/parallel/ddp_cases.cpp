// DistributedDataParallel run by several ranks under lockrun.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <limits>

#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

/// The gradients of five steps, and the parameters after them.
std::vector<at::Tensor> train(double bucket_cap_mb, const World& world) {
  std::vector<at::Tensor> kept;
  Toy model;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = bucket_cap_mb});
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    at::mse_loss(ddp(batch_input(step, world.rank())), batch_target(step, world.rank())).backward();
    keep_gradients(*model, kept);
    optimizer.step();
  }
  for (const at::Tensor& parameter : model->parameters()) kept.push_back(parameter);
  return kept;
}

TEST(Ddp, BucketSizeDoesNotChangeTheBits) {
  const World& world = testing::world();
  const auto expected = train(25, world);
  for (const double cap : {25.0, 0.0001, 0.0005, 1.0 / 1024, 1.0, std::numeric_limits<double>::infinity()}) {
    const auto found = train(cap, world);
    for (size_t i = 0; i < expected.size(); ++i) CHECK_EQUAL(expected[i], found[i]);
  }
}

TEST(Ddp, GradientsLiveInTheBuckets) {
  const World& world = testing::world();
  Toy model;
  DistributedDataParallel ddp(model);
  const auto backward = [&] {
    at::mse_loss(ddp(batch_input(0, world.rank())), batch_target(0, world.rank())).backward();
  };
  backward();
  model->zero_grad();
  backward();  // the buckets have been laid out anew, for good
  std::vector<const void*> places;
  for (const auto& parameter : model->parameters()) {
    places.push_back(parameter.grad().const_data_ptr());
    CHECK_TRUE(reinterpret_cast<uintptr_t>(places.back()) % 64 == 0);
  }
  // Dropped by zero_grad(set_to_none), they are in the bucket again.
  torch::optim::SGD(model->parameters(), 0.1).zero_grad();
  backward();
  for (size_t i = 0; i < places.size(); ++i)
    CHECK_TRUE(model->parameters()[i].grad().const_data_ptr() == places[i]);
  // Accumulated by the user: the sum of both passes' averages.
  const at::Tensor once = model->net1->weight.grad().clone();
  backward();
  CHECK_CLOSE(model->net1->weight.grad(), once * 2, 1e-5, 1e-7);
}

TEST(Ddp, NoGradArmsNothing) {
  const World& world = testing::world();
  Toy model;
  DistributedDataParallel ddp(model);
  for (const bool training : {true, false}) {
    model->train(training);
    const torch::NoGradGuard no_grad;
    if (world.rank() == 0) ddp(batch_input(0, 0));  // others do not even call it
  }
  model->train();
  model->zero_grad();
  ddp(batch_input(0, world.rank())).sum().backward();
  const auto gathered = world.all_gather(model->net1->weight.grad());
  for (const auto& gradient : gathered) CHECK_EQUAL(gradient, gathered[0]);
}

TEST(Ddp, DifferentModulesAreRefused) {
  const World& world = testing::world();
  torch::nn::Linear model(4, world.rank() == 0 ? 3 : 2);
  check_throws<Error>(
      [&] { DistributedDataParallel ddp(model); },
      "rank 0 has parameter weight [3, 4] Float requires_grad, rank 1 has parameter weight [2, 4]");
}

TEST(Ddp, TwoForwardsThroughBatchNormInOneBackward) {
  const int own = world().rank();
  torch::nn::BatchNorm1d model(3), alone(3);
  DistributedDataParallel ddp(model);
  const auto loss = [](auto&& call, int rank) {
    return (call(wave({8, 3}, rank)) * call(wave({8, 3}, rank + 5))).sum();
  };
  const auto expected = average_gradients(*alone, [&](int rank) { return loss(alone, rank); });
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    loss(ddp, own).backward();
    check_gradients(*model, expected, 1e-4);
  }
}

TEST(Ddp, BuffersFollowRank0) {
  const World& world = testing::world();
  torch::nn::BatchNorm1d model(3);
  DistributedDataParallel ddp(model);
  for (int step = 0; step < 3; ++step) ddp(wave({8, 3}, world.rank() + step)).sum().backward();
  ddp(wave({8, 3}, world.rank()));
  // Rank r's statistics differ by its own last batch only; the broadcast before it made them equal.
  const torch::NoGradGuard no_grad;
  model->eval();
  const auto gathered = world.all_gather(model->running_mean);
  const at::Tensor start = (gathered[0] - 0.1 * wave({8, 3}, 0).mean(0)) / 0.9;
  for (int r = 0; r < world.size(); ++r) {
    CHECK_CLOSE(gathered[static_cast<size_t>(r)], start * 0.9 + 0.1 * wave({8, 3}, r).mean(0), 1e-4, 1e-6);
  }
}

TEST(Ddp, DevicesAreChecked) {
  const auto refused = [](Toy& model, DistributedDataParallelOptions options, const std::string& why) {
    check_throws<ValueError>([&] { DistributedDataParallel wrong(model, options); },
                             "DistributedDataParallel: " + why);
  };
  Toy on_cpu;
  refused(on_cpu, {.device_ids = {0, 1}}, "device_ids may name one device at most, not 2");
  refused(on_cpu, {.device_ids = {0}}, "device_ids and output_device are for modules on one GPU");
  refused(on_cpu, {.output_device = 0}, "device_ids and output_device are for modules on one GPU");
}

}  // namespace
}  // namespace lockstep::testing
