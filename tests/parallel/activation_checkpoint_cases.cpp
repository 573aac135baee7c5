// activation_checkpoint() inside the wrappers, beside the same model without it: the same bits on all ranks.
#include "lockstep/parallel/activation_checkpoint.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/mse_loss.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <string>
#include <vector>

#include "lockstep/ops/dropout.h"
#include "lockstep/parallel/data_parallel/data_parallel.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "tests/parallel/ddp_models.h"
#include "tests/ranks/rank_test.h"

namespace lockstep::testing {
namespace {

constexpr double kTiny = 1e-4;

/// Blocks of a layer and dropout. The third block has the weights of the first, or of the second.
struct BlocksImpl : torch::nn::Cloneable<BlocksImpl> {
  struct Options {
    bool checkpoints = false, shares = false;
    double libtorch_dropout = 0.2;
  };
  explicit BlocksImpl(Options o) : options(o) { BlocksImpl::reset(); }
  void reset() override {
    in = register_module("in", torch::nn::Linear(10, 8));
    one = register_module("one", torch::nn::Linear(8, 8));
    two = register_module("two", torch::nn::Linear(8, 8));
    out = register_module("out", torch::nn::Linear(8, 5));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = in->forward(x);
    for (const auto& layer : {one, two, options.shares ? two : one}) {
      const auto block = [this, layer](const at::Tensor& v) {
        const at::Tensor y = ops::dropout(layer.ptr()->forward(v).tanh(), 0.3);
        return (y + at::dropout(v, options.libtorch_dropout, true)).mul(v.sigmoid());
      };
      h = options.checkpoints ? activation_checkpoint(block, h) : block(h);
    }
    return out->forward(h);
  }
  Options options;
  torch::nn::Linear in{nullptr}, one{nullptr}, two{nullptr}, out{nullptr};
};
TORCH_MODULE(Blocks);

std::vector<at::Tensor> copy_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

/// Parameters after some steps, one of them of two micro-batches, without and with checkpoints.
void expect_same_bits(const std::string& what, const DistributedDataParallelOptions& options,
                      BlocksImpl::Options kind = {}, bool whole_call = false) {
  std::vector<at::Tensor> expected;
  for (const bool checkpoints : {false, true}) {
    at::manual_seed(7 + static_cast<uint64_t>(world().rank()));
    kind.checkpoints = checkpoints && !whole_call;
    Blocks model(kind);
    DistributedDataParallel ddp(model, options);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    const auto call = [&](const at::Tensor& x) {
      const auto run = [&](const at::Tensor& v) { return ddp(v).to(at::kFloat); };
      return checkpoints && whole_call ? activation_checkpoint(run, x) : run(x);
    };
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      if (step == 2 && !options.static_graph) {
        const auto guard = ddp.no_sync();
        at::mse_loss(call(batch_input(50, world().rank())), batch_target(50, world().rank())).backward();
      }
      at::mse_loss(call(batch_input(step, world().rank())), batch_target(step, world().rank())).backward();
      optimizer.step();
    }
    auto found = copy_of(model->parameters());
    found.push_back(at::rand({2}));
    if (!checkpoints) expected = found;
    for (size_t i = 0; i < found.size(); ++i) {
      if (!found[i].equal(expected[i])) throw Error(what + ": tensor " + std::to_string(i) + " differs");
    }
  }
}

TEST(ActivationCheckpoint, UnderDistributedDataParallel) {
  const MixedPrecision low{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
  for (const bool shares : {false, true}) {
    expect_same_bits("plain", {}, {.shares = shares});
    expect_same_bits("tiny buckets", {.bucket_cap_mb = kTiny}, {.shares = shares});
    expect_same_bits("static graph", {.bucket_cap_mb = kTiny, .static_graph = true}, {.shares = shares});
    expect_same_bits("mixed precision", {.mixed_precision = low}, {.shares = shares});
    expect_same_bits("views", {.bucket_cap_mb = kTiny, .gradient_as_bucket_view = true}, {.shares = shares});
  }
}

TEST(ActivationCheckpoint, OfAWholeCallOfTheWrapper) {
  const MixedPrecision low{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
  expect_same_bits("plain", {}, {}, /*whole_call=*/true);
  expect_same_bits("tiny buckets", {.bucket_cap_mb = kTiny}, {.shares = true}, true);
  expect_same_bits("mixed precision", {.mixed_precision = low}, {}, true);
  expect_same_bits("passes per step", {.backward_passes_per_step = 2}, {}, true);
  expect_same_bits("static graph", {.bucket_cap_mb = kTiny, .static_graph = true}, {}, true);
}

/// A forward that does not synchronize does not in its second run either, if no_sync() has ended by then.
TEST(ActivationCheckpoint, OfAWholeCallWithoutSynchronization) {
  std::vector<at::Tensor> expected;
  for (const bool checkpoints : {false, true}) {
    at::manual_seed(7);
    Blocks model(BlocksImpl::Options{});
    DistributedDataParallel ddp(model);
    const auto run = [&](const at::Tensor& v) { return ddp(v); };
    const auto call = [&](int step) {
      const at::Tensor x = batch_input(step, world().rank());
      return at::mse_loss(checkpoints ? activation_checkpoint(run, x) : run(x),
                          batch_target(step, world().rank()));
    };
    at::Tensor loss;
    {
      const auto guard = ddp.no_sync();
      loss = call(1);
    }
    loss.backward();
    std::vector<at::Tensor> found;
    for (const at::Tensor& parameter : model->parameters()) found.push_back(parameter.grad().clone());
    call(2).backward();
    for (const at::Tensor& parameter : model->parameters()) found.push_back(parameter.grad().clone());
    if (!checkpoints) expected = found;
    for (size_t i = 0; i < found.size(); ++i) CHECK_EQUAL(found[i], expected[i]);
  }
}

/// Its statistics are of all ranks, and made again in the backward of all ranks.
TEST(ActivationCheckpoint, OfSyncBatchNorm) {
  std::vector<at::Tensor> expected;
  for (const bool checkpoints : {false, true}) {
    at::manual_seed(7 + static_cast<uint64_t>(world().rank()));
    Blocks model(BlocksImpl::Options{.checkpoints = checkpoints});
    SyncBatchNorm synchronized(8);
    DistributedDataParallel ddp(model);
    const auto block = [&](const at::Tensor& v) { return synchronized.ptr()->forward(v).tanh().exp(); };
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      synchronized->zero_grad();
      const at::Tensor x = batch_input(step, world().rank()).narrow(1, 0, 8);
      const at::Tensor h = checkpoints ? activation_checkpoint(block, x) : block(x);
      at::mse_loss(ddp(at::cat({h, h.narrow(1, 0, 2)}, 1)), batch_target(step, world().rank())).backward();
    }
    auto found = copy_of(synchronized->parameters());
    for (const at::Tensor& parameter : synchronized->parameters()) found.push_back(parameter.grad().clone());
    for (const at::Tensor& parameter : model->parameters()) found.push_back(parameter.grad().clone());
    if (!checkpoints) expected = found;
    for (size_t i = 0; i < found.size(); ++i) CHECK_EQUAL(found[i], expected[i]);
  }
}

/// Each replica's second run draws what its first one drew.
TEST(ActivationCheckpoint, UnderDataParallel) {
  std::vector<at::Tensor> expected;
  for (const bool checkpoints : {false, true}) {
    at::manual_seed(7 + static_cast<uint64_t>(world().rank()));
    // LibTorch's own dropout draws in the order in which the replicas' threads come.
    Blocks model(BlocksImpl::Options{.checkpoints = checkpoints, .libtorch_dropout = 0});
    DataParallel parallel(model, {.replicas = 2});
    for (int step = 0; step < 2; ++step) {
      at::mse_loss(parallel(batch_input(step, world().rank())), batch_target(step, world().rank()))
          .backward();
    }
    std::vector<at::Tensor> found;
    for (const at::Tensor& parameter : model->parameters()) found.push_back(parameter.grad().clone());
    if (!checkpoints) expected = found;
    for (size_t i = 0; i < found.size(); ++i) CHECK_EQUAL(found[i], expected[i]);
  }
}

}  // namespace
}  // namespace lockstep::testing
