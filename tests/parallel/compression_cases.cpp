// Hooks that compress, combine or average less often, against references of their own.
#include <ATen/ops/outer.h>
#include <torch/optim/sgd.h>

#include "lockstep/parallel/hooks/ddp_comm_hooks.h"
#include "lockstep/parallel/hooks/default_hooks.h"
#include "lockstep/parallel/hooks/horovod_hooks.h"
#include "lockstep/parallel/hooks/post_local_sgd_hook.h"
#include "lockstep/parallel/join.h"
#include "lockstep/parallel/model_averaging.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

/// A gradient of rank 1 everywhere, with the same rows: PowerSGD loses nothing.
TEST(DdpCompression, PowerSGDOfALowRankGradientIsExact) {
  for (const bool batched : {false, true}) {
    torch::nn::Linear model(torch::nn::LinearOptions(32, 32).bias(false));
    DistributedDataParallel ddp(model);
    const auto state =
        std::make_shared<PowerSGDState>(std::nullopt, PowerSGDOptions{.start_powerSGD_iter = 2});
    if (batched) {
      ddp.register_comm_hook(state, batched_powerSGD_hook);
    } else {
      ddp.register_comm_hook(state, powerSGD_hook);
    }
    for (int step = 0; step < 5; ++step) {
      model->zero_grad();
      // d/dW of sum(v . W x) is the outer product of v and x.
      const at::Tensor x = wave({1, 32}, step), v = wave({32}, 50 + world().rank());
      (ddp(x) * v).sum().backward();
      at::Tensor mean_v = at::zeros({32});
      for (int r = 0; r < world().size(); ++r) mean_v += wave({32}, 50 + r) / world().size();
      CHECK_CLOSE(model->weight.grad(), at::outer(mean_v, x[0]), 1e-4, 1e-5);
    }
    const auto stats = state->compression_stats();
    CHECK_TRUE(stats.numel_before_compression == 3 * 32 * 32);
    CHECK_TRUE(stats.numel_after_compression == 3 * 64);
    CHECK_TRUE(std::abs(stats.compress_rate - 16) < 1e-9);
    CHECK_TRUE(state->iter == 5);
  }
}

/// A model that is wrapped anew has the buckets of a first pass again: its training goes on all the same.
TEST(DdpCompression, PowerSGDResumesInANewWrapper) {
  for (const double cap : {kTiny, 25.0}) {
    std::vector<std::vector<at::Tensor>> results;
    for (const bool saves : {false, true}) {
      Toy model;
      const PowerSGDOptions options{.start_powerSGD_iter = 2, .min_compression_rate = 0.5, .random_seed = 7};
      auto state = std::make_shared<PowerSGDState>(std::nullopt, options);
      auto ddp = std::make_unique<DistributedDataParallel<Toy>>(
          model, DistributedDataParallelOptions{.bucket_cap_mb = cap});
      ddp->register_comm_hook(state, powerSGD_hook);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      for (int step = 0; step < 6; ++step) {
        if (saves && step == 4) {
          const auto saved = std::exchange(state, std::make_shared<PowerSGDState>())->state_dict();
          state->load_state_dict(saved);
          optimizer.zero_grad();
          ddp = std::make_unique<DistributedDataParallel<Toy>>(
              model, DistributedDataParallelOptions{.bucket_cap_mb = cap, .init_sync = false});
          ddp->register_comm_hook(state, powerSGD_hook);
        }
        optimizer.zero_grad();
        toy_loss(*ddp, step, world().rank()).backward();
        optimizer.step();
      }
      results.push_back(model->parameters());
    }
    for (size_t p = 0; p < results[0].size(); ++p) CHECK_CLOSE(results[0][p], results[1][p], 1e-6, 1e-7);
  }
}

/// Steps 3 to 5 with the state that was saved after step 2 are those without saving, to the bit.
TEST(DdpCompression, PowerSGDStateIsSaved) {
  std::vector<std::vector<at::Tensor>> results;
  for (const bool saves : {false, true}) {
    Toy model;
    DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
    const PowerSGDOptions options{.start_powerSGD_iter = 2, .min_compression_rate = 0.5, .random_seed = 7};
    const auto state = std::make_shared<PowerSGDState>(std::nullopt, options);
    ddp.register_comm_hook(state, powerSGD_hook);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    for (int step = 0; step < 6; ++step) {
      if (saves && step == 4) {
        const PowerSGDState::StateDict saved = state->state_dict();
        *state = PowerSGDState();
        state->load_state_dict(saved);
        CHECK_TRUE(state->iter == 4);
        CHECK_TRUE(state->options.random_seed == 7);
        CHECK_TRUE(!state->errors.empty());
      }
      optimizer.zero_grad();
      toy_loss(ddp, step, world().rank()).backward();
      optimizer.step();
    }
    results.push_back(model->parameters());
  }
  for (size_t p = 0; p < results[0].size(); ++p) CHECK_EQUAL(results[0][p], results[1][p]);
  PowerSGDState state;
  auto incomplete = state.state_dict();
  incomplete.erase("draws");
  check_throws<ValueError>([&] { state.load_state_dict(incomplete); }, "has no \"draws\"");
}

/// Two gradients become one: (1 - ab / 2aa) a + (1 - ab / 2bb) b.
at::Tensor adasum_of(const at::Tensor& a, const at::Tensor& b) {
  const double ab = (a * b).sum().item<double>(), aa = (a * a).sum().item<double>(),
               bb = (b * b).sum().item<double>();
  return a * (aa > 0 ? 1 - ab / (2 * aa) : 1) + b * (bb > 0 ? 1 - ab / (2 * bb) : 1);
}

at::Tensor adasum_of(const std::vector<at::Tensor>& all, size_t begin, size_t end) {
  if (end - begin == 1) return all[begin];
  const size_t half = (begin + end) / 2;
  return adasum_of(adasum_of(all, begin, half), adasum_of(all, half, end));
}

TEST(DdpCompression, AdasumAgainstItsFormula) {
  Toy model, alone;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = 0.0003});
  ddp.register_comm_hook(std::nullopt, adasum_hook);
  if (world().size() == 3) {
    check_throws<ValueError>([&] { toy_loss(ddp, 0, world().rank()).backward(); }, "a power of two, not 3");
    return;
  }
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    toy_loss(ddp, step, world().rank()).backward();
    std::vector<std::vector<at::Tensor>> by_parameter(4);
    for (int rank = 0; rank < world().size(); ++rank) {
      alone->zero_grad();
      toy_loss(alone, step, rank).backward();
      for (size_t p = 0; p < 4; ++p) by_parameter[p].push_back(alone->parameters()[p].grad().to(at::kDouble));
    }
    for (size_t p = 0; p < 4; ++p) {
      const at::Tensor& found = model->parameters()[p].grad();
      CHECK_CLOSE(found, adasum_of(by_parameter[p], 0, by_parameter[p].size()), 1e-5, 1e-6);
      for (const at::Tensor& theirs : world().all_gather(found)) CHECK_EQUAL(theirs, found);
    }
  }
}

TEST(DdpCompression, PredividedAverages) {
  for (const double factor : {1.0, 4.0, 0.3}) {
    Toy model;
    DistributedDataParallel ddp(model);
    ddp.register_comm_hook(PredivideState{.gradient_predivide_factor = factor}, predivide_hook);
    toy_loss(ddp, 0, world().rank()).backward();
    check_gradients(*model, expected_toy_gradients(0));
  }
}

TEST(DdpCompression, HooksByName) {
  for (const char* name :
       {"allreduce", "fp16_compress", "bf16_compress", "quantize_per_tensor", "quantize_per_channel",
        "power_sgd", "power_sgd_rank2", "batched_power_sgd", "batched_power_sgd_rank2"}) {
    Toy model;
    DistributedDataParallel ddp(model);
    register_ddp_comm_hook(ddp_comm_hook_type(name), ddp);  // PowerSGD starts after 1000 passes
    toy_loss(ddp, 0, world().rank()).backward();
    const auto expected = expected_toy_gradients(0);
    for (size_t p = 0; p < 4; ++p) {
      const double error = (model->parameters()[p].grad() - expected[p]).abs().max().item<double>();
      CHECK_TRUE(error <= 0.02 * expected[p].abs().max().item<double>() + 1e-3);
    }
  }
  check_throws<ValueError>([] { ddp_comm_hook_type("fp8"); }, "choose one of allreduce, fp16_compress");
}

TEST(DdpCompression, ModelAveraging) {
  // Steps 0 and 1 are warm-up; then every second.
  PeriodicModelAverager averager(2, 2);
  const double mean = (world().size() - 1) / 2.0;
  for (int step = 0; step < 6; ++step) {
    const at::Tensor used = at::full({3}, world().rank() + 10.0 * step).requires_grad_();
    const at::Tensor unused = at::full({2}, world().rank() + 10.0 * step).requires_grad_();
    used.mutable_grad() = at::zeros({3});
    averager.average_parameters({used, unused});
    const bool averages = step == 2 || step == 4;
    CHECK_CLOSE(used, at::full({3}, 10.0 * step + (averages ? mean : world().rank())), 1e-5, 1e-6);
    CHECK_CLOSE(unused, at::full({2}, 10.0 * step + world().rank()), 1e-5, 1e-6);
  }
  CHECK_TRUE(averager.step == 6);
}

TEST(DdpCompression, WhatHooksRefuse) {
  check_throws<ValueError>([] { PowerSGDState(std::nullopt, {.start_powerSGD_iter = 1}); },
                           "start_powerSGD_iter must be greater than 1");
  check_throws<ValueError>([] { PowerSGDState(std::nullopt, {.matrix_approximation_rank = 0}); },
                           "matrix_approximation_rank must be at least 1");
  check_throws<ValueError>([] { PeriodicModelAverager(0); }, "period must be at least 1");
  check_throws<ValueError>([] { PeriodicModelAverager(2, -1); }, "warmup_steps must be at least 0");
  Toy model;
  check_throws<ValueError>([&] { DistributedDataParallel ddp(model, {.backward_passes_per_step = 0}); },
                           "backward_passes_per_step must be at least 1");
  DistributedDataParallel ddp(model, {.backward_passes_per_step = 2});
  check_throws<ValueError>([&] { join({ddp}, [] {}); }, "backward_passes_per_step");
}

/// Three micro-batches make one step: the average of the ranks' sums.
TEST(DdpCompression, BackwardPassesPerStep) {
  const int rank = world().rank();
  Toy model, alone;
  DistributedDataParallel ddp(model, {.backward_passes_per_step = 3});
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    for (int micro = 0; micro < 3; ++micro) {
      toy_loss(ddp, 3 * step + micro, rank).backward();
      {
        const torch::NoGradGuard no_grad;
        ddp(batch_input(0, rank));  // does not count
      }
      if (rank == 0) ddp(batch_input(0, rank));  // nor does this, which leads to no backward
      if (micro == 0) {
        alone->zero_grad();
        toy_loss(alone, 3 * step, rank).backward();
        CHECK_CLOSE(model->net1->weight.grad(), alone->net1->weight.grad(), 1e-5, 1e-6);
      }
    }
    check_gradients(*model, average_gradients(*alone, [&](int r) {
      return toy_loss(alone, 3 * step, r) + toy_loss(alone, 3 * step + 1, r) +
             toy_loss(alone, 3 * step + 2, r);
    }));
  }
}

}  // namespace
}  // namespace lockstep::testing
