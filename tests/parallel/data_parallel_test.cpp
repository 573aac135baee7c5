// What DataParallel promises, on small modules.
#include "lockstep/parallel/data_parallel/data_parallel.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "lockstep/optim/autocast.h"
#include "tests/parallel/ddp_models.h"
#include "tests/parallel/gradients.h"

namespace lockstep {
namespace {

using testing::expect_close;
using testing::gradients_of;
using testing::wave;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    second = register_module("second", torch::nn::Linear(8, 3));
    norm->eval();  // statistics of a shard are not the whole batch's
  }
  at::Tensor forward(const at::Tensor& x) { return second->forward(norm->forward(first->forward(x)).relu()); }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

template <class Impl>
std::shared_ptr<Impl> copy_of(const Impl& module) {
  return std::dynamic_pointer_cast<Impl>(module.clone());
}

template <class E>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

TEST(DataParallelTest, OutputsAndGradientsAreTheModules) {
  for (const int replicas : {1, 2, 3, 4}) {
    for (const int rows : {1, 2, 3, 5, 8, 13}) {  // uneven ones, and fewer than replicas
      Net net;
      Net alone(copy_of(*net));
      DataParallel parallel(net, {.replicas = replicas});
      const at::Tensor x = wave({rows, 6}, 1).requires_grad_(), same = wave({rows, 6}, 1).requires_grad_();
      for (int step = 0; step < 2; ++step) {  // the second accumulates
        const at::Tensor y = parallel(x), expected = alone->forward(same);
        EXPECT_LE((y - expected).abs().max().item<double>(), 1e-6);
        at::mse_loss(y, wave({rows, 3}, 2)).backward();
        at::mse_loss(expected, wave({rows, 3}, 2)).backward();
      }
      expect_close(gradients_of(*net), gradients_of(*alone));
      expect_close({x.grad()}, {same.grad()});
    }
  }
}

struct ManyImpl : torch::nn::Cloneable<ManyImpl> {
  using Inputs = std::map<std::string, at::Tensor>;
  struct Output {
    at::Tensor logits, loss;
    std::vector<at::Tensor> hidden;
    int layers = 0;
  };
  ManyImpl() { reset(); }
  void reset() override {
    left = register_module("left", torch::nn::Linear(4, 3));
    right = register_module("right", torch::nn::Linear(4, 3));
    unused = register_module("unused", torch::nn::Linear(2, 2));
  }
  Output forward(const Inputs& inputs, double scale, const std::tuple<at::Tensor, at::Tensor>& more) {
    const at::Tensor a = left->forward(inputs.at("a")), b = right->forward(std::get<0>(more)) * scale;
    return {a + b, (a * std::get<1>(more)).mean(), {a, b}, 2};
  }
  torch::nn::Linear left{nullptr}, right{nullptr}, unused{nullptr};
};
TORCH_MODULE(Many);

TEST(DataParallelTest, MapsTuplesAndStructsGoInAndOut) {
  Many net;
  Many alone(copy_of(*net));
  DataParallel parallel(net, {.replicas = 3});
  const ManyImpl::Inputs inputs{{"a", wave({7, 4}, 1)}};
  const at::Tensor factor = wave({7, 3}, 5).requires_grad_(), same = factor.detach().clone().requires_grad_();
  const auto output = parallel(inputs, 0.5, std::tuple(wave({7, 4}, 2), factor));
  const auto expected = alone->forward(inputs, 0.5, std::tuple(wave({7, 4}, 2), same));
  EXPECT_LE((output.logits - expected.logits).abs().max().item<double>(), 1e-6);
  EXPECT_LE((output.hidden[1] - expected.hidden[1]).abs().max().item<double>(), 1e-6);
  EXPECT_EQ(output.layers, 2);
  ASSERT_EQ(output.loss.sizes(), at::IntArrayRef({3}));
  // The mean of each replica's part, weighted by its samples.
  const at::Tensor loss = (output.loss * at::tensor({3.0, 3.0, 1.0})).sum() / 7;
  EXPECT_NEAR(loss.item<double>(), expected.loss.item<double>(), 1e-6);
  // A backward through some of the outputs.
  (output.logits.sum() + loss).backward();
  (expected.logits.sum() + expected.loss).backward();
  expect_close(gradients_of(*net), gradients_of(*alone));  // none for `unused`
  expect_close({factor.grad()}, {same.grad()});
}

TEST(DataParallelTest, TheMeanOfALossIsOverTheWholeBatch) {
  struct LossImpl : torch::nn::Cloneable<LossImpl> {
    LossImpl() { reset(); }
    void reset() override { linear = register_module("linear", torch::nn::Linear(4, 3)); }
    at::Tensor forward(const at::Tensor& x, const at::Tensor& labels) {
      return at::cross_entropy_loss(linear->forward(x), labels);
    }
    torch::nn::Linear linear{nullptr};
  };
  for (const int rows : {8, 7, 5, 1}) {
    const auto net = std::make_shared<LossImpl>();
    const auto alone = copy_of(*net);
    const at::Tensor x = wave({rows, 4}, 1).requires_grad_(), labels = at::arange(rows) % 3;
    const at::Tensor same = x.detach().clone().requires_grad_();
    DataParallel parallel(net, {.replicas = 4});
    const at::Tensor expected = alone->forward(same, labels);
    expected.backward();
    const at::Tensor loss = parallel.mean_loss(x, labels);
    EXPECT_EQ(loss.dim(), 0);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6);
    loss.backward();
    expect_close(gradients_of(*net), gradients_of(*alone));
    expect_close({x.grad()}, {same.grad()});
    // The other form: a criterion beside a forward that returns its logits.
    DataParallel linear(net->linear, {.replicas = 4});
    net->zero_grad();
    const DataParallelCriterion criterion(
        [](auto& logits, auto& target) { return at::cross_entropy_loss(logits, target); });
    criterion(linear, labels, x).backward();
    expect_close(gradients_of(*net), gradients_of(*alone));
    net->zero_grad();
    at::Tensor halved = parallel.mean_loss(x.detach(), labels);
    halved /= 2;  // as for accumulation
    (halved * 2).backward();
    expect_close(gradients_of(*net), gradients_of(*alone));
  }
  torch::nn::Linear wide(4, 3);
  DataParallel parallel(wide);
  EXPECT_NE(message_of<ValueError>([&] {
              parallel.mean_loss(wave({4, 4}, 1));
            }).find("a replica's loss must be one number, and replica 0 returned 6"),
            std::string::npos);
}

TEST(DataParallelTest, ReplicasShareTheParametersMemory) {
  Net net;
  DataParallel parallel(net, {.replicas = 3});
  parallel(wave({6, 6}, 1)).sum().backward();
  for (const Net& replica : parallel.replicas()) {
    for (size_t p = 0; p < net->parameters().size(); ++p) {
      EXPECT_EQ(replica->parameters()[p].const_data_ptr(), net->parameters()[p].const_data_ptr());
      if (replica.ptr() != net.ptr()) {
        EXPECT_FALSE(replica->parameters()[p].grad().defined());
      }
    }
  }
  // The gradient is aligned memory of a bucket and stays there.
  const void* const place = net->first->weight.grad().const_data_ptr();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(place) % 64, 0U);
  torch::optim::SGD(net->parameters(), 0.1).zero_grad();
  parallel(wave({6, 6}, 1)).sum().backward();
  EXPECT_EQ(net->first->weight.grad().const_data_ptr(), place);
}

TEST(DataParallelTest, FollowsWhatIsDoneToTheModule) {
  Net net;
  DataParallel parallel(net, {.replicas = 2});
  const at::Tensor x = wave({8, 6}, 1);
  parallel(x).sum().backward();
  net->zero_grad();
  {
    const at::NoGradGuard no_grad;
    net->first->weight.set_data(net->first->weight.clone() * 2);  // other memory
    net->norm->running_mean.fill_(0.25);
  }
  net->second->weight.set_requires_grad(false);
  Net alone(copy_of(*net));
  alone->second->weight.set_requires_grad(false);  // which a clone forgets
  const at::Tensor y = parallel(x), expected = alone->forward(x);
  EXPECT_LE((y - expected).abs().max().item<double>(), 1e-6);
  y.sum().backward();
  expected.sum().backward();
  EXPECT_FALSE(net->second->weight.grad().defined());
  expect_close(gradients_of(*net), gradients_of(*alone));
  net->second->weight.set_requires_grad(true);
  net->zero_grad();
  net->norm->train();
  parallel(x).sum().backward();
  EXPECT_TRUE(net->second->weight.grad().defined());
  EXPECT_TRUE(parallel.replicas()[1]->norm->is_training());
  // An optimizer's step in between is noticed.
  const at::Tensor late = parallel(x).sum();
  {
    const at::NoGradGuard no_grad;
    net->second->weight.add_(1);
  }
  EXPECT_NE(message_of<ReplicaError>([&] { late.backward(); }).find("modified by an inplace operation"),
            std::string::npos);
}

TEST(DataParallelTest, BatchNormFollowsReplica0) {
  torch::nn::BatchNorm1d norm(3);
  DataParallel parallel(norm, {.replicas = 2});
  torch::nn::BatchNorm1d alone(3);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = wave({8, 3}, step);
    const at::Tensor y = parallel(x);
    EXPECT_TRUE(y.narrow(0, 0, 4).allclose(alone->forward(x.narrow(0, 0, 4)), 1e-5, 1e-6));
  }
  EXPECT_TRUE(norm->running_mean.allclose(alone->running_mean));
  EXPECT_TRUE(norm->running_var.allclose(alone->running_var));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 3);
  parallel->eval();
  EXPECT_TRUE(parallel(wave({8, 3}, 5)).equal(norm->forward(wave({8, 3}, 5))));
}

struct ThrowingImpl : torch::nn::Cloneable<ThrowingImpl> {
  ThrowingImpl() { reset(); }
  void reset() override { linear = register_module("linear", torch::nn::Linear(2, 1)); }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = linear->forward(x);
    if (x.min().item<double>() < 0) throw std::runtime_error("a sample is negative");
    if (x.max().item<double>() > 10) {
      y.register_hook(
          [](const at::Tensor& /*gradient*/) -> at::Tensor { throw std::runtime_error("too great"); });
    }
    return y;
  }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Throwing);

TEST(DataParallelTest, AnExceptionNamesTheReplicaAndChangesNoGradient) {
  Throwing net;
  DataParallel parallel(net, {.replicas = 2});
  const at::Tensor good = at::ones({4, 2});
  parallel(good).sum().backward();
  const auto before = gradients_of(*net);
  at::Tensor bad = at::ones({4, 2});
  bad[3][0] = -1;
  EXPECT_EQ(message_of<ReplicaError>([&] { parallel(bad); }),
            "DataParallel: replica 1 of 2 in forward: a sample is negative");
  bad[3][0] = 11;
  const at::Tensor loss = parallel(bad).sum();
  try {
    loss.backward();
    FAIL();
  } catch (const ReplicaError& error) {
    EXPECT_EQ(error.replica(), 1);
    EXPECT_EQ(std::string(error.what()), "DataParallel: replica 1 of 2 in backward: too great");
    EXPECT_THROW(std::rethrow_exception(error.cause()), std::runtime_error);
  }
  for (size_t p = 0; p < before.size(); ++p) EXPECT_TRUE(before[p].equal(net->parameters()[p].grad()));
  // And the next step is as if nothing had been.
  net->zero_grad();
  parallel(good).sum().backward();
  for (size_t p = 0; p < before.size(); ++p) EXPECT_TRUE(before[p].equal(net->parameters()[p].grad()));
}

TEST(DataParallelTest, BackwardTwiceNeedsTheGraph) {
  Net net;
  DataParallel parallel(net);
  const at::Tensor loss = parallel(wave({4, 6}, 1)).sum();
  loss.backward({}, /*retain_graph=*/true);
  const auto once = gradients_of(*net);
  loss.backward();
  EXPECT_TRUE(net->first->weight.grad().allclose(once[0] * 2));
  EXPECT_NE(message_of<std::exception>([&] { loss.backward(); }), "no error");
  EXPECT_NE(message_of<Error>([&] {
              parallel(wave({4, 6}, 1)).sum().backward({}, true, true);
            }).find("create_graph"),
            std::string::npos);
}

TEST(DataParallelTest, TwoForwardsInOneBackward) {
  Net net;
  Net alone(copy_of(*net));
  DataParallel parallel(net);
  (parallel(wave({4, 6}, 1)).sum() + 2 * parallel(wave({5, 6}, 2)).sum()).backward();
  (alone->forward(wave({4, 6}, 1)).sum() + 2 * alone->forward(wave({5, 6}, 2)).sum()).backward();
  for (size_t p = 0; p < alone->parameters().size(); ++p) {
    EXPECT_TRUE(net->parameters()[p].grad().allclose(alone->parameters()[p].grad(), 1e-5, 1e-5));
  }
}

TEST(DataParallelTest, GradModeAndAutocastAreTheCallers) {
  Net net;
  DataParallel parallel(net);
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(parallel(wave({4, 6}, 1)).requires_grad());
  }
  {
    const AutocastGuard autocast(true);
    EXPECT_EQ(parallel(wave({4, 6}, 1)).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(parallel(wave({4, 6}, 1)).scalar_type(), at::kFloat);
}

struct NoCloneImpl : torch::nn::Module {
  explicit NoCloneImpl(int64_t width) {
    linear = register_module("linear", torch::nn::Linear(2, width));
    linear2 = register_module("twice", torch::nn::Linear(width, width));
  }
  at::Tensor forward(const at::Tensor& x) { return linear2->forward(linear->forward(x)); }
  torch::nn::Linear linear{nullptr}, linear2{nullptr};
};

TEST(DataParallelTest, AFactoryMakesModulesWithoutClone) {
  at::manual_seed(3);
  const auto alone = std::make_shared<NoCloneImpl>(3);
  const at::Tensor after = at::randn({2});
  at::manual_seed(3);
  DataParallel parallel([] { return std::make_shared<NoCloneImpl>(3); }, {.replicas = 3});
  EXPECT_TRUE(after.equal(at::randn({2})));  // as if it had been made once
  EXPECT_TRUE(parallel(wave({5, 2}, 1)).allclose(alone->forward(wave({5, 2}, 1))));
  EXPECT_NE(message_of<ValueError>([&] { DataParallel wrong(alone); }).find("give DataParallel a factory"),
            std::string::npos);
  int64_t width = 2;
  EXPECT_EQ(
      message_of<ValueError>(
          [&] { DataParallel wrong([&] { return std::make_shared<NoCloneImpl>(++width); }); }),
      "DataParallel: the replicas differ: replica 0 has parameter linear.weight [3, 2] Float, another has "
      "linear.weight [4, 2] Float; a factory must make the same module each time");
  EXPECT_NE(message_of<ValueError>([&] { DataParallel wrong(alone, {.replicas = 0}); }), "no error");
}

TEST(DataParallelTest, GpusThatAreNotThereAreNamed) {
  if (at::globalContext().hasCUDA()) GTEST_SKIP() << "GPUs are there";
  Net net;
  const auto message = [&](DataParallelOptions options) {
    return message_of<ValueError>([&] { DataParallel wrong(net, options); });
  };
  EXPECT_EQ(
      message({.device_ids = {3, 1}}),
      "DataParallel: device_ids names GPU 3, but this process sees none; leave device_ids out for replicas on the "
      "CPU");
  EXPECT_EQ(message({.replicas = 1, .device_ids = {0}}).find("DataParallel: device_ids names GPU 0, but"),
            0U);
  EXPECT_EQ(
      message({.output_device = 1}),
      "DataParallel: output_device names GPU 1, but replicas are on the CPU; output_device needs device_ids");
  DataParallel right(net, {.device_ids = {}});
  EXPECT_EQ(right.replicas().size(), 2U);
}

/// What replicas on GPUs do, as far as it can be seen without one: parameters of their own that follow the module's.
TEST(DataParallelTest, ReplicasWithMemoryOfTheirOwn) {
  Net net;
  const auto alone = copy_of(*net);
  const DataParallelOptions options{.replicas = 3};
  detail::ReplicaPlaces places = detail::choose_places(options);
  places.shares_memory = false;
  const std::vector<Net> nets{net, Net(copy_of(*net)), Net(copy_of(*net))};
  const auto set = std::make_shared<detail::ReplicaSet>(
      std::vector<std::shared_ptr<torch::nn::Module>>{nets[0].ptr(), nets[1].ptr(), nets[2].ptr()}, options,
      places);
  for (int step = 0; step < 3; ++step) {
    at::Tensor x = wave({7, 6}, step).requires_grad_();
    detail::Shards shards = set->scatter(detail::find_tensors(x, "x"));
    std::vector<at::Tensor> outputs(3);
    set->forward(shards.count(), [&](int replica) {
      const auto r = static_cast<size_t>(replica);
      outputs[r] = nets[r].ptr()->forward(shards.parts[r][0]);
    });
    std::vector<detail::FoundTensors> found;
    for (at::Tensor& output : outputs) found.push_back(detail::find_tensors(output, "y"));
    set->gather(std::move(shards), std::move(found), detail::Join::concatenate)
        .front()
        .square()
        .sum()
        .backward();
    const at::Tensor copy = wave({7, 6}, step).requires_grad_();
    alone->forward(copy).square().sum().backward();
    EXPECT_TRUE(x.grad().allclose(copy.grad(), 1e-4, 1e-6));
    EXPECT_FALSE(nets[1]->first->weight.is_alias_of(net->first->weight));
    for (size_t p = 0; p < net->parameters().size(); ++p) {
      EXPECT_TRUE(net->parameters()[p].grad().allclose(alone->parameters()[p].grad(), 1e-4, 1e-6));
      EXPECT_FALSE(nets[1]->parameters()[p].grad().defined());
    }
    const at::NoGradGuard no_grad;
    for (Net one : {net, Net(alone)}) {
      for (at::Tensor parameter : one->parameters()) parameter -= parameter.grad() * 0.1;
      one->zero_grad();
    }
  }
}

TEST(DataParallelTest, SparseGradients) {
  const auto make = [] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 3).sparse(true)); };
  DataParallel parallel(make, {.replicas = 2});
  torch::nn::Embedding alone = make();
  {
    const at::NoGradGuard no_grad;
    alone->weight.copy_(parallel->weight);
  }
  for (int step = 0; step < 2; ++step) {
    parallel(at::arange(5) + step).square().sum().backward();
    alone->forward(at::arange(5) + step).square().sum().backward();
  }
  ASSERT_TRUE(parallel->weight.grad().is_sparse());
  EXPECT_TRUE(parallel->weight.grad().to_dense().allclose(alone->weight.grad().to_dense()));
}

TEST(DataParallelTest, PartsOfItAsPythonHasThem) {
  Net net;
  Net alone(copy_of(*net));
  const at::Tensor x = wave({5, 6}, 1).requires_grad_(), same = wave({5, 6}, 1).requires_grad_();
  const auto inputs = scatter(x, 2);
  auto replicas = replicate(net, static_cast<int>(inputs.size()));
  const at::Tensor y = gather(parallel_apply(replicas, inputs));
  const at::Tensor expected = alone->forward(same);
  EXPECT_LE((y - expected).abs().max().item<double>(), 1e-6);
  y.square().sum().backward();
  expected.square().sum().backward();
  for (size_t p = 0; p < alone->parameters().size(); ++p) {
    EXPECT_TRUE(net->parameters()[p].grad().allclose(alone->parameters()[p].grad(), 1e-5, 1e-6));
    EXPECT_EQ(replicas[1]->parameters()[p].const_data_ptr(), net->parameters()[p].const_data_ptr());
  }
  EXPECT_TRUE(x.grad().allclose(same.grad(), 1e-5, 1e-6));
  const auto pairs = scatter(std::tuple(at::ones({4, 2})), 2);
  std::vector<Throwing> modules{Throwing(), Throwing()};
  EXPECT_EQ(parallel_apply(modules, pairs)[1].size(0), 2);
  EXPECT_NE(message_of<ValueError>([&] { parallel_apply(modules, scatter(x, 3)); }), "no error");
  EXPECT_NE(message_of<ReplicaError>([&] {
              parallel_apply(modules, scatter(-at::ones({4, 2}), 2));
            }).find("replica 0 of 2"),
            std::string::npos);
}

int64_t thread_count() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Threads:")) return std::stoll(line.substr(8));
  }
  return -1;
}

/// The kernel counts a thread for a moment after join() has returned.
int64_t thread_count_at_rest(int64_t expected) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (thread_count() != expected && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return thread_count();
}

/// Bytes of the heap that are in use: unlike resident memory, the same on every machine.
size_t heap_in_use() {
  const auto heap = ::mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

TEST(DataParallelTest, StepsLeaveNothingBehind) {
  const bool is_long = std::getenv("LOCKSTEP_LONG_TESTS") != nullptr;
  const int steps = is_long ? 10000 : 500;
  Net net;
  const int64_t threads_before = thread_count();
  size_t memory = 0;
  int64_t threads = 0;
  {
    DataParallel parallel(net, {.replicas = 3});
    torch::optim::SGD optimizer(net->parameters(), 1e-3);
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      const at::Tensor y = parallel(wave({1 + step % 7, 6}, step));
      if (step % 5 != 4) y.square().mean().backward();
      optimizer.step();
      if (step != steps / 5) continue;
      memory = heap_in_use();
      threads = thread_count();
    }
    EXPECT_EQ(thread_count(), threads);
    // 100 B a step would be 40,000; a thread keeps some freed blocks for itself.
    EXPECT_LT(heap_in_use(), memory + 30000);
  }
  EXPECT_EQ(thread_count_at_rest(threads_before), threads_before);
}

}  // namespace
}  // namespace lockstep
