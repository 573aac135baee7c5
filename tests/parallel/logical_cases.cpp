// What LogicalRanks refuse, and steps that are out of the ordinary.
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>

#include "lockstep/parallel/hooks/default_hooks.h"
#include "lockstep/parallel/logical/logical_ranks.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

/// A power of two that any of the numbers of ranks shares, or nothing.
int logical_size() { return world().size() == 3 ? 0 : 2 * world().size(); }

at::Tensor loss_of(auto& net, int step, int rank) {
  return at::mse_loss(net(batch_input(step, rank)), batch_target(step, rank));
}

/// The tree's mean over logical ranks of a bare module's gradients.
std::vector<at::Tensor> expected_means(Toy& net, int step, int size) {
  std::vector<std::vector<at::Tensor>> leaves;
  const auto call = [&](const at::Tensor& x) { return net->forward(x); };
  for (int rank = 0; rank < size; ++rank) {
    net->zero_grad();
    loss_of(call, step, rank).backward();
    auto& leaf = leaves.emplace_back();
    for (const at::Tensor& parameter : net->parameters()) {
      leaf.push_back(parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter));
    }
  }
  for (; leaves.size() > 1; leaves.resize(leaves.size() / 2)) {
    for (size_t i = 0; i < leaves.size(); i += 2) {
      for (size_t p = 0; p < leaves[i].size(); ++p) leaves[i / 2][p] = leaves[i][p] + leaves[i + 1][p];
    }
  }
  for (at::Tensor& sum : leaves[0]) sum = sum / size;
  return leaves[0];
}

void expect_means(Toy& model, int step) {
  Toy alone;
  for (size_t p = 0; p < model->parameters().size(); ++p) {
    alone->parameters()[p].requires_grad_(model->parameters()[p].requires_grad());
  }
  const auto expected = expected_means(alone, step, logical_size());
  const auto parameters = model->parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].requires_grad()) continue;
    EXPECT_TRUE(at::equal(parameters[p].grad(), expected[p])) << "step " << step << ", parameter " << p;
  }
}

TEST(LogicalRanks, StepsOutOfTheOrdinary) {
  ONLY_IF(logical_size() > 0);
  Toy model;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
  LogicalRanks ranks(ddp, {.size = logical_size()});
  const auto run = [&](int step) {
    ranks.run_step(static_cast<uint64_t>(step), 1,
                   [&](const LogicalPass& pass) { loss_of(ddp, step, pass.rank).backward(); });
    expect_means(model, step);
  };
  run(0);
  run(1);  // onto gradients that were not dropped
  model->zero_grad(/*set_to_none=*/false);
  run(2);
  // An exception in a logical rank of every process, in a pass of the reducer and before.
  for (const bool in_last : {false, true}) {
    const int failing = in_last ? ranks.own().back() : ranks.own().front();
    check_throws<std::runtime_error>(
        [&] {
          ranks.run_step(3, 1, [&](const LogicalPass& pass) {
            if (pass.rank == failing) throw std::runtime_error("no more data");
            loss_of(ddp, 3, pass.rank).backward();
          });
        },
        "no more data");
    run(4);
  }
  model->net1->weight.requires_grad_(false);
  run(5);
  model->net1->weight.requires_grad_(true);
  run(6);
}

/// Autograd gives both parameters views of one piece of memory as their gradients.
struct SharedGradientImpl : torch::nn::Module {
  SharedGradientImpl()
      : a(register_parameter("a", at::ones({2, 2}))), b(register_parameter("b", at::ones({4}))) {}
  at::Tensor forward(const at::Tensor& x) { return (a.view(-1) + b.view(-1)) * x; }
  at::Tensor a, b;
};
TORCH_MODULE(SharedGradient);

TEST(LogicalRanks, GradientsOfTwoParametersInOneMemoryAreAddedOnce) {
  ONLY_IF(logical_size() > 0);
  SharedGradient model;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
  LogicalRanks ranks(ddp, {.size = logical_size()});
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    ranks.run_step(static_cast<uint64_t>(step), 1,
                   [&](const LogicalPass& pass) { ddp(at::full({4}, pass.rank)).sum().backward(); });
    for (const at::Tensor& parameter : model->parameters()) {
      EXPECT_TRUE(at::equal(parameter.grad(), at::full_like(parameter, (logical_size() - 1) / 2.0)))
          << parameter.grad();
    }
  }
}

TEST(LogicalRanks, AnExceptionInANonLastOneEndsTheStepOfAllAndTheNextIsRight) {
  ONLY_IF(logical_size() > 0);
  Toy model;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
  LogicalRanks ranks(ddp, {.size = logical_size()});
  for (int step = 0; step < 4; ++step) {
    const auto run = [&] {
      ranks.run_step(static_cast<uint64_t>(step), 1, [&](const LogicalPass& pass) {
        if (step == 1 && pass.rank == 0) throw std::runtime_error("no more samples");
        loss_of(ddp, step, pass.rank).backward();
      });
    };
    if (step == 1) {
      EXPECT_ANY_THROW(run());
    } else {
      run();
      expect_means(model, step);
    }
  }
}

TEST(LogicalRanks, RefusesWhatWouldNotRepeat) {
  ONLY_IF(logical_size() > 0);
  const auto refuses = [](auto module, DistributedDataParallelOptions options, const std::string& part) {
    DistributedDataParallel ddp(module, options);
    check_throws<ValueError>([&] { LogicalRanks(ddp, {.size = logical_size()}); }, part);
  };
  refuses(
      torch::nn::Sequential(torch::nn::Linear(2, 3),
                            SyncBatchNorm(torch::nn::BatchNormOptions(3), world().new_subgroups(1))),
      {},
      "LogicalRanks: SyncBatchNorm 1 is over ranks " + std::to_string(world().rank()) + ", the gradients");
  refuses(torch::nn::Sequential(torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true))), {},
          "embeddings with sparse=true");
  Toy low;
  low->to(at::kBFloat16);
  refuses(low, {}, "parameter net1.weight is BFloat16");
  refuses(Toy(), {.broadcast_buffers = false}, "leave forward_sync_buffers and broadcast_buffers true");
  refuses(Toy(), {.backward_passes_per_step = 2}, "backward_passes_per_step");

  Toy model;
  DistributedDataParallel ddp(model);
  check_throws<Error>(
      [&] { LogicalRanks(ddp, {.size = logical_size(), .seed = static_cast<uint64_t>(world().rank())}); },
      "option seed");
  LogicalRanks ranks(ddp, {.size = logical_size()});
  check_throws<Error>([&] { LogicalRanks(ddp, {.size = logical_size()}); }, "make it once");
  check_throws<Error>([&] { ddp.register_comm_hook(std::nullopt, allreduce_hook); }, "register_comm_hook");
  check_throws<ValueError>([&] { ranks.run_step(0, 0, [](const LogicalPass&) {}); }, "it needs at least 1");
}

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    body = register_module("body", torch::nn::Linear(10, 6));
    norm = register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(6)));
    last = register_module("last", SyncBatchNorm(torch::nn::BatchNormOptions(6)));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x, int throws_at) {
    at::Tensor y = body->forward(x);
    if (throws_at == 0) throw std::runtime_error("thrown at 0");
    y = norm->forward(y);
    if (throws_at == 1) throw std::runtime_error("thrown at 1");
    // Between the layers, in backward.
    if (throws_at == 2) {
      y.register_hook([](const at::Tensor&) { throw std::runtime_error("thrown at 2"); });
    }
    return last->forward(y.tanh());
  }
  torch::nn::Linear body{nullptr};
  SyncBatchNorm norm{nullptr}, last{nullptr};
};
TORCH_MODULE(Normed);

/// The loss over all batches, normalized together, as one process would compute it.
TEST(LogicalRanks, BatchesAreNormalizedTogetherAndAnExceptionLeavesNothing) {
  ONLY_IF(logical_size() > 0);
  Normed model, alone;
  alone->norm->set_process_group(std::nullopt);
  alone->last->set_process_group(std::nullopt);
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
  LogicalRanks ranks(ddp, {.size = logical_size()});
  const auto input = [](int step, int rank) { return batch_input(step, rank, 3 + rank % 2); };
  const auto loss = [](const at::Tensor& y) { return (y.square() * wave(y.sizes(), 0)).sum(); };
  const auto run = [&](int step, int failing = -1, int throws_at = -1) {
    ranks.run_step(static_cast<uint64_t>(step), 1, [&](const LogicalPass& pass) {
      loss(ddp(input(step, pass.rank), pass.rank == failing ? throws_at : -1)).backward();
    });
  };
  const auto expect = [&](int step) {
    std::vector<at::Tensor> inputs;
    for (int rank = 0; rank < logical_size(); ++rank) inputs.push_back(input(step, rank));
    alone->zero_grad();
    const at::Tensor outputs = alone->forward(at::cat(inputs), -1);
    at::Tensor total = at::zeros({});
    int64_t row = 0;
    for (const at::Tensor& one : inputs) {
      total = total + loss(outputs.narrow(0, row, one.size(0))) / logical_size();
      row += one.size(0);
    }
    total.backward();
    for (size_t p = 0; p < model->parameters().size(); ++p) {
      CHECK_CLOSE(model->parameters()[p].grad(), alone->parameters()[p].grad(), 1e-4, 1e-5);
    }
    for (size_t b = 0; b < model->buffers().size(); ++b) {
      CHECK_CLOSE(model->buffers()[b], alone->buffers()[b], 1e-5, 1.0000000000000002e-6);
    }
  };
  run(0);
  expect(0);
  const auto memory = model->norm->running_mean.const_data_ptr();
  run(1);
  expect(1);
  CHECK_TRUE(model->norm->running_mean.const_data_ptr() == memory);
  const auto before = [&] {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& buffer : model->buffers()) copies.push_back(buffer.clone());
    return copies;
  }();
  for (const int throws_at : {0, 1, 2}) {
    for (const bool in_last : {false, true}) {
      const int failing = in_last ? ranks.own().back() : ranks.own().front();
      check_throws<std::runtime_error>([&] { run(2, failing, throws_at); },
                                       "thrown at " + std::to_string(throws_at));
      const at::NoGradGuard no_grad;
      for (size_t b = 0; b < before.size(); ++b) model->buffers()[b].copy_(before[b]);
    }
  }
  run(3);
  expect(3);
  check_throws<Error>([&] { ddp(input(4, 0), -1); },
                      "the forward of SyncBatchNorm norm runs on a thread that belongs to no logical rank");
  model->eval();
  alone->eval();
  const at::NoGradGuard no_grad;
  CHECK_CLOSE(ddp(input(4, 0), -1), alone->forward(input(4, 0), -1), 1e-4, 1e-5);
}

TEST(LogicalRanks, AParameterThatALogicalRankDoesNotUseIsNamed) {
  ONLY_IF(logical_size() > 0);
  TwoHeads model;
  DistributedDataParallel ddp(model);
  LogicalRanks ranks(ddp, {.size = logical_size()});
  check_throws<Error>(
      [&] {
        ranks.run_step(0, 1, [&](const LogicalPass&) {
          std::get<0>(ddp(at::ones({2, 4}))).sum().backward();
        });
      },
      "no gradient for right.weight, right.bias");
}

}  // namespace
}  // namespace lockstep::testing
