// A DataParallel inside a wrapped module: gradients are the average over all replicas of all ranks.
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/embedding.h>

#include <memory>
#include <optional>

#include "lockstep/parallel/data_parallel/data_parallel.h"
#include "lockstep/parallel/hooks/default_hooks.h"
#include "lockstep/parallel/logical/logical_ranks.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

struct PartImpl : torch::nn::Cloneable<PartImpl> {
  PartImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(4, 6));
    norm = register_module("norm", BatchNorm(6));
    second = register_module("second", torch::nn::Linear(6, 4));
    unused = register_module("unused", torch::nn::Linear(2, 2));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    // Without statistics of the batch: those depend on how it is divided.
    norm->eval();
    return second->forward(norm->forward(ops::linear(x, first->weight, first->bias)).tanh());
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, unused{nullptr};
  BatchNorm norm{nullptr};
};
TORCH_MODULE(Part);

enum class Use { submodule, root, twice, beside };

struct HybridImpl : torch::nn::Module {
  HybridImpl(Use use, int replicas) : use_(use) {
    part = register_module("part", Part());
    if (use != Use::root) out = register_module("out", torch::nn::Linear(4, 2));
    fill_with_waves(*this);
    if (replicas > 0) parallel.emplace(part, DataParallelOptions{.replicas = replicas});
  }
  at::Tensor part_of(const at::Tensor& x) { return parallel ? (*parallel)(x) : part->forward(x); }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = part_of(x);
    if (use_ == Use::twice) y = part_of(y.tanh()) + y;
    if (use_ == Use::beside) y = y + part->second->forward(y.tanh().repeat({1, 2}).narrow(1, 0, 6));
    return out ? out->forward(y) : y;
  }
  Use use_;
  Part part{nullptr};
  torch::nn::Linear out{nullptr};
  std::optional<DataParallel<Part>> parallel;
};
TORCH_MODULE(Hybrid);

at::Tensor hybrid_rows(int step, int rank, int64_t count = 7) {
  return wave({count, 4}, 40 * step + 11 * rank + 2);
}

/// What Hybrid's gradients must be; zeros of the layer that nothing uses.
std::vector<at::Tensor> expected_of_hybrid(Hybrid& alone, int step, at::ScalarType dtype, int64_t count = 7) {
  return average_gradients(*alone, [&](int rank) {
    return alone->forward(hybrid_rows(step, rank, count).to(dtype)).to(at::kDouble).square().sum();
  });
}

/// The layer that nothing uses has zeros, or with one replica no gradient.
void check_hybrid(const torch::nn::Module& model, const std::vector<at::Tensor>& wanted,
                  double tolerance = 1e-5) {
  size_t p = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    if (!parameter.grad().defined() && wanted[p].abs().max().item().toDouble() == 0) {
      parameter.mutable_grad() = at::zeros_like(parameter);
    }
    ++p;
  }
  check_gradients(model, wanted, tolerance);
}

void trains_hybrid(Use use, int replicas, DistributedDataParallelOptions options,
                   at::ScalarType dtype = at::kFloat, int64_t count = 7) {
  const int own = world().rank();
  Hybrid model(use, 0), alone(use, 0);
  model->to(dtype);
  alone->to(dtype);
  model->parallel.emplace(model->part, DataParallelOptions{.replicas = replicas});
  DistributedDataParallel ddp(model, options);
  const double tolerance = dtype == at::kDouble ? 1e-9 : dtype == at::kBFloat16 ? 0.04 : 1e-5;
  for (int step = 0; step < 4; ++step) {
    if (step != 2) model->zero_grad(step % 2 == 0);
    if (step == 2) model->zero_grad(false);
    const auto wanted = expected_of_hybrid(alone, step, dtype, count);
    ddp(hybrid_rows(step, own, count).to(dtype)).to(at::kDouble).square().sum().backward();
    check_hybrid(*model, wanted, tolerance);
  }
}

TEST(Hybrid, AveragesReplicasAndRanks) {
  for (const Use use : {Use::submodule, Use::root, Use::twice, Use::beside}) {
    for (const int replicas : {1, 2, 3}) {
      trains_hybrid(use, replicas, {.find_unused_parameters = true});
      trains_hybrid(use, replicas, {.bucket_cap_mb = kTiny, .find_unused_parameters = true});
      trains_hybrid(use, replicas, {.find_unused_parameters = true, .gradient_as_bucket_view = false});
      trains_hybrid(use, replicas, {.static_graph = true});
      trains_hybrid(use, replicas, {.find_unused_parameters = true}, at::kDouble);
      trains_hybrid(use, replicas, {.find_unused_parameters = true}, at::kBFloat16);
    }
  }
  trains_hybrid(Use::submodule, 3, {.find_unused_parameters = true}, at::kFloat,
                /*count=*/2);  // fewer rows than replicas
}

/// Gradients of a module without a layer that nothing uses do not depend on find_unused_parameters.
TEST(Hybrid, WithoutOptions) {
  const int own = world().rank();
  for (const bool retains : {false, true}) {
    Hybrid model(Use::submodule, 2), alone(Use::submodule, 0);
    for (auto* const module : {&model, &alone}) {
      for (at::Tensor& parameter : (*module)->part->unused->parameters()) parameter.set_requires_grad(false);
    }
    DistributedDataParallel ddp(model);
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      auto wanted = expected_of_hybrid(alone, step, at::kFloat);
      const at::Tensor loss = ddp(hybrid_rows(step, own)).to(at::kDouble).square().sum();
      loss.backward({}, retains);
      if (retains) {
        loss.backward();
        for (at::Tensor& gradient : wanted) gradient *= 2;
      }
      size_t p = 0;
      for (const at::Tensor& parameter : model->parameters()) {
        const at::Tensor& gradient = wanted[p++];
        CHECK_TRUE(!parameter.requires_grad() || is_close(parameter.grad(), gradient));
      }
    }
  }
}

TEST(Hybrid, AccumulatesUnderNoSync) {
  const int own = world().rank();
  Hybrid model(Use::submodule, 2), alone(Use::submodule, 0);
  DistributedDataParallel ddp(model, {.find_unused_parameters = true});
  for (int round = 0; round < 3; ++round) {
    model->zero_grad();
    auto wanted = expected_of_hybrid(alone, 2 * round, at::kFloat);
    const auto more = expected_of_hybrid(alone, 2 * round + 1, at::kFloat);
    for (size_t p = 0; p < wanted.size(); ++p) wanted[p] += more[p];
    {
      const auto guard = ddp.no_sync();
      ddp(hybrid_rows(2 * round, own)).to(at::kDouble).square().sum().backward();
    }
    ddp(hybrid_rows(2 * round + 1, own)).to(at::kDouble).square().sum().backward();
    check_hybrid(*model, wanted);
  }
}

TEST(Hybrid, InLowPrecision) {
  const int own = world().rank();
  for (const bool reduces_low : {false, true}) {
    MixedPrecision precision{.param_dtype = at::kBFloat16, .buffer_dtype = at::kBFloat16};
    if (!reduces_low) precision.reduce_dtype = at::kFloat;
    Hybrid model(Use::submodule, 2);
    DistributedDataParallel ddp(model, {.find_unused_parameters = true, .mixed_precision = precision});
    for (int step = 0; step < 3; ++step) {
      Hybrid low(Use::submodule, 0);
      low->to(at::kBFloat16);
      const auto wanted = expected_of_hybrid(low, step, at::kBFloat16);
      model->zero_grad();
      ddp(hybrid_rows(step, own)).to(at::kDouble).square().sum().backward();
      for (const auto& item : model->named_parameters()) {
        CHECK_TRUE(item.value().scalar_type() == at::kFloat);
        CHECK_TRUE(item.value().grad().scalar_type() == at::kFloat);
      }
      check_hybrid(*model, wanted, 0.05);
    }
  }
}

TEST(Hybrid, WithACommunicationHookAndADivisor) {
  const int own = world().rank();
  Hybrid model(Use::submodule, 2), alone(Use::submodule, 0);
  DistributedDataParallel ddp(model, {.find_unused_parameters = true, .backward_passes_per_step = 2});
  ddp.register_comm_hook(std::nullopt, allreduce_hook);
  for (int round = 0; round < 2; ++round) {
    model->zero_grad();
    auto wanted = expected_of_hybrid(alone, 2 * round, at::kFloat);
    const auto more = expected_of_hybrid(alone, 2 * round + 1, at::kFloat);
    for (size_t p = 0; p < wanted.size(); ++p) wanted[p] += more[p];
    for (const int step : {2 * round, 2 * round + 1}) {
      ddp(hybrid_rows(step, own)).to(at::kDouble).square().sum().backward();
    }
    check_hybrid(*model, wanted);
  }
}

TEST(Hybrid, WithLogicalRanks) {
  const int size = world().size(), own = world().rank();
  ONLY_IF((world().size() & (world().size() - 1)) == 0);
  for (const int each : {1, 2}) {
    Hybrid model(Use::submodule, 2), alone(Use::submodule, 0);
    DistributedDataParallel ddp(model, {.find_unused_parameters = true});
    LogicalRanks ranks(ddp, {.size = each * size});
    for (uint64_t step = 0; step < 2; ++step) {
      std::vector<at::Tensor> wanted;
      for (int rank = 0; rank < each * size; ++rank) {
        alone->zero_grad();
        alone->forward(hybrid_rows(static_cast<int>(step), rank)).to(at::kDouble).square().sum().backward();
        size_t p = 0;
        for (const at::Tensor& parameter : alone->parameters()) {
          const at::Tensor gradient =
              parameter.grad().defined() ? parameter.grad().clone() : at::zeros_like(parameter);
          if (rank == 0) {
            wanted.push_back(gradient);
          } else {
            wanted[p] += gradient;
          }
          ++p;
        }
      }
      for (at::Tensor& gradient : wanted) gradient /= each * size;
      ranks.run_step(step, 1, [&](const LogicalPass& pass) {
        CHECK_TRUE(pass.rank / each == own);
        ddp(hybrid_rows(static_cast<int>(step), pass.rank)).to(at::kDouble).square().sum().backward();
      });
      check_hybrid(*model, wanted);
    }
  }
}

struct WordsImpl : torch::nn::Cloneable<WordsImpl> {
  WordsImpl() { reset(); }
  void reset() override {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 3).sparse(true)));
    layer = register_module("layer", torch::nn::Linear(3, 2));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& ids) { return layer->forward(table->forward(ids).sum(1)); }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Words);
struct WordsHybridImpl : torch::nn::Module {
  explicit WordsHybridImpl(bool is_parallel) {
    words = register_module("words", Words());
    if (is_parallel) parallel.emplace(words, DataParallelOptions{.replicas = 2});
  }
  at::Tensor forward(const at::Tensor& ids) { return parallel ? (*parallel)(ids) : words->forward(ids); }
  Words words{nullptr};
  std::optional<DataParallel<Words>> parallel;
};
TORCH_MODULE(WordsHybrid);

TEST(Hybrid, SparseGradients) {
  const int own = world().rank();
  WordsHybrid model(true), alone(false);
  DistributedDataParallel ddp(model);
  const auto ids = [](int step, int rank) {
    return at::arange(12, at::kLong).mul(3 + rank + step).remainder(9).view({6, 2});
  };
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    const auto wanted =
        average_gradients(*alone, [&](int rank) { return alone->forward(ids(step, rank)).square().sum(); });
    ddp(ids(step, own)).square().sum().backward();
    CHECK_TRUE(model->words->table->weight.grad().is_sparse());
    check_hybrid(*model, wanted);
  }
}

/// Ranks divide a model's batches in another way each: 1, 2, 3, ... replicas.
TEST(Hybrid, AnotherNumberOfReplicasOnEachRank) {
  const int own = world().rank();
  Hybrid model(Use::submodule, own + 1), alone(Use::submodule, 0);
  DistributedDataParallel ddp(model, {.find_unused_parameters = true});
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    const auto wanted = expected_of_hybrid(alone, step, at::kFloat);
    ddp(hybrid_rows(step, own)).to(at::kDouble).square().sum().backward();
    check_hybrid(*model, wanted);
  }
}

TEST(Hybrid, AnExceptionInAReplicaFailsTheStep) {
  const int own = world().rank();
  struct BadImpl : torch::nn::Cloneable<BadImpl> {
    BadImpl() { reset(); }
    void reset() override {
      layer = register_module("layer", torch::nn::Linear(4, 2));
      fill_with_waves(*this);
    }
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor y = layer->forward(x);
      y.register_hook([first = x[0][0].item<float>()](const at::Tensor& gradient) -> at::Tensor {
        if (first > 50) throw std::runtime_error("a replica's hook");
        return gradient;
      });
      return y;
    }
    torch::nn::Linear layer{nullptr};
  };
  const auto inner = std::make_shared<BadImpl>(), alone = std::make_shared<BadImpl>();
  struct OuterImpl : torch::nn::Module {
    explicit OuterImpl(const std::shared_ptr<BadImpl>& bad) : parallel(bad, {.replicas = 2}) {
      register_module("bad", bad);
    }
    at::Tensor forward(const at::Tensor& x) { return parallel(x); }
    DataParallel<std::shared_ptr<BadImpl>> parallel;
  };
  const auto outer = std::make_shared<OuterImpl>(inner);
  DistributedDataParallel ddp(outer);
  at::Tensor bad = hybrid_rows(0, own);
  if (own == 1) bad[4][0] = 100;  // the first row of the second replica's part
  if (own == 1) {
    check_throws<Error>([&] { ddp(bad).sum().backward(); }, "a replica's hook");
  } else {
    check_throws<Error>([&] { ddp(bad).sum().backward(); }, "rank 1");
  }
  for (int step = 1; step < 3; ++step) {
    outer->zero_grad();
    const auto wanted = average_gradients(
        *alone, [&](int rank) { return alone->forward(hybrid_rows(step, rank)).square().sum(); });
    ddp(hybrid_rows(step, own)).square().sum().backward();
    check_gradients(*outer, wanted);
  }
}

/// Only replica 0's would meet the other ranks.
TEST(Hybrid, ASynchronizedBatchNormIsRefused) {
  Hybrid model(Use::submodule, 2);
  convert_sync_batchnorm(*model, world());
  DistributedDataParallel ddp(model, {.find_unused_parameters = true});
  check_throws<ValueError>([&] { ddp(hybrid_rows(0, world().rank())); },
                           "a synchronized batch normalization waits for other ranks");
  ddp.recover();
}

}  // namespace
}  // namespace lockstep::testing
