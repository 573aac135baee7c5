// Communication hooks and gradients of odd kinds: none, one or oddly laid out elements, half precision, what
// is not finite.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/optim/sgd.h>

#include <limits>

#include "lockstep/parallel/hooks/ddp_comm_hooks.h"
#include "lockstep/parallel/hooks/default_hooks.h"
#include "lockstep/parallel/hooks/horovod_hooks.h"
#include "lockstep/parallel/hooks/power_sgd_hook.h"
#include "lockstep/parallel/hooks/quantization_hooks.h"
#include "lockstep/parallel/model_averaging.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

/// forward() returns a loss whose gradients are what `gradient` says.
struct OddHookedImpl : torch::nn::Module {
  OddHookedImpl() {
    const auto add = [&](const char* name, const at::Tensor& value) { register_parameter(name, value); };
    add("scalar", at::zeros({}));
    add("empty", at::zeros({0, 3}));
    add("one", at::zeros({1}));
    add("wide", at::zeros({6, 40}));
    add("transposed", at::zeros({9, 7}).t());
    add("with_gaps", at::zeros({8, 16}).narrow(1, 0, 5));
    add("channels_last", at::zeros({6, 4, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast));
    add("half", at::zeros({3, 40}, at::kBFloat16));
    add("half_scalar", at::zeros({}, at::kBFloat16));
    add("double", at::zeros({5, 11}, at::kDouble));
  }
  at::Tensor gradient(const std::string& name, int step, int rank) {
    const at::Tensor parameter = named_parameters()[name];
    return (wave(parameter.sizes(), 7 * step + 3 * rank + static_cast<double>(name.size())) + 0.4)
        .to(parameter.scalar_type());
  }
  at::Tensor forward(int step, int rank) {
    at::Tensor loss = at::zeros({});
    for (const auto& item : named_parameters()) {
      loss = loss + (item.value() * gradient(item.key(), step, rank)).sum().to(at::kFloat);
    }
    return loss;
  }
};
TORCH_MODULE(OddHooked);

/// How far a hook's result may be from the average, by the largest element of it; `half`: in half precision.
struct Tolerance {
  double full, half;
};

template <class State, class Hook>
void averages_odd_gradients(const char* what, const State& state, Hook hook, Tolerance tolerance) {
  for (const double cap : {kTiny, 25.0}) {
    OddHooked model;
    DistributedDataParallel ddp(model, {.bucket_cap_mb = cap});
    ddp.register_comm_hook(state(), hook);
    for (int step = 0; step < 5; ++step) {
      model->zero_grad();
      ddp(step, world().rank()).backward();
      for (const auto& item : model->named_parameters()) {
        const at::Tensor& parameter = item.value();
        const at::Tensor found = parameter.grad();
        CHECK_TRUE(found.sizes() == parameter.sizes());
        CHECK_TRUE(found.scalar_type() == parameter.scalar_type());
        if (parameter.numel() == 0) continue;
        at::Tensor expected = at::zeros(parameter.sizes(), at::kDouble);
        for (int r = 0; r < world().size(); ++r) {
          expected += model->gradient(item.key(), step, r).to(at::kDouble) / world().size();
        }
        const double error = (found.to(at::kDouble) - expected).abs().max().item<double>();
        const double limit =
            (parameter.scalar_type() == at::kBFloat16 ? tolerance.half : tolerance.full) * 0.7;
        if (!(error <= limit)) {
          throw std::runtime_error(
              fmt::format("{}: the gradient of {} is off by {} in step {}", what, item.key(), error, step));
        }
        for (const at::Tensor& theirs : world().all_gather(found.reshape({-1}))) {
          CHECK_EQUAL(theirs, found.reshape({-1}));
        }
      }
    }
  }
}

/// The approximation has full rank, so that nothing is lost.
std::shared_ptr<PowerSGDState> full_rank(bool batches) {
  return std::make_shared<PowerSGDState>(std::nullopt,
                                         PowerSGDOptions{.matrix_approximation_rank = 64,
                                                         .start_powerSGD_iter = 2,
                                                         .min_compression_rate = 0.01,
                                                         .batch_tensors_with_same_shape = batches});
}

TEST(OddHooks, HooksAndOddGradients) {
  const auto none = [] { return std::nullopt; };
  averages_odd_gradients("allreduce", none, allreduce_hook, {1e-6, 1e-2});
  averages_odd_gradients("fp16", none, fp16_compress_hook, {2e-3, 1e-2});
  averages_odd_gradients("bf16", none, bf16_compress_hook, {1e-2, 1e-2});
  averages_odd_gradients("fp16 wrapper", none, fp16_compress_wrapper(allreduce_hook), {2e-3, 1e-2});
  averages_odd_gradients("pertensor", none, quantization_pertensor_hook, {5e-3, 1e-2});
  averages_odd_gradients("perchannel", none, quantization_perchannel_hook, {5e-3, 1e-2});
  averages_odd_gradients("predivide", [] { return PredivideState{.gradient_predivide_factor = 3}; },
                         predivide_hook, {1e-6, 2e-2});
  averages_odd_gradients("powerSGD", [] { return full_rank(false); }, powerSGD_hook, {1e-3, 0.05});
  averages_odd_gradients("powerSGD in batches", [] { return full_rank(true); }, powerSGD_hook, {1e-3, 0.05});
  averages_odd_gradients("batched powerSGD", [] { return full_rank(false); }, batched_powerSGD_hook,
                         {1e-3, 0.05});
}

/// Against the formula, for gradients that are equal on all ranks: their average is themselves.
TEST(OddHooks, AdasumAndOddGradients) {
  if ((world().size() & (world().size() - 1)) != 0) return;
  OddHooked model;
  DistributedDataParallel ddp(model);
  ddp.register_comm_hook(std::nullopt, adasum_hook);
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    ddp(step, 0).backward();
    for (const auto& item : model->named_parameters()) {
      if (item.value().numel() == 0) continue;
      CHECK_CLOSE(item.value().grad(), model->gradient(item.key(), step, 0),
                  item.value().scalar_type() == at::kBFloat16 ? 2e-2 : 1e-5,
                  item.value().scalar_type() == at::kBFloat16 ? 2e-3 : 1e-6);
    }
  }
}

/// One step with a gradient on rank 0 that is no number, or infinite: all ranks see it, and the steps after
/// that are right again.
template <class State, class Hook>
void recovers(const State& state, Hook hook, double tolerance) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    torch::nn::Linear model(12, 12);
    fill_with_waves(*model);
    DistributedDataParallel ddp(model);
    ddp.register_comm_hook(state(), hook);
    for (int step = 0; step < 7; ++step) {
      model->zero_grad();
      at::Tensor factor = wave({12, 12}, 5 * step + world().rank());
      const bool is_bad = step == 3;
      if (is_bad && world().rank() == 0) factor[3][4] = bad;
      // d/dW is factor x^T, of full rank.
      (ddp(wave({12, 12}, step)) * factor).sum().backward();
      const at::Tensor& found = model->weight.grad();
      if (is_bad) {
        CHECK_TRUE(!at::isfinite(found).all().item<bool>());
        continue;
      }
      at::Tensor mean = at::zeros({12, 12});
      for (int r = 0; r < world().size(); ++r) mean += wave({12, 12}, 5 * step + r) / world().size();
      const at::Tensor expected = mean.t().mm(wave({12, 12}, step));
      const double error = (found - expected).abs().max().item<double>();
      const double limit = tolerance * expected.abs().max().item<double>();
      if (!(error <= limit)) throw std::runtime_error(fmt::format("step {} is off by {}", step, error));
    }
  }
}

TEST(OddHooks, HooksRecoverFromWhatIsNotFinite) {
  const auto none = [] { return std::nullopt; };
  recovers(none, allreduce_hook, 1e-5);
  recovers(none, fp16_compress_hook, 1e-2);
  recovers(none, quantization_pertensor_hook, 2e-2);
  recovers(none, quantization_perchannel_hook, 2e-2);
  recovers([] { return full_rank(false); }, powerSGD_hook, 1e-3);
  recovers([] { return full_rank(false); }, batched_powerSGD_hook, 1e-3);
}

at::Tensor run_hook(const std::shared_ptr<PowerSGDState>& state, const at::Tensor& gradients,
                    const std::vector<at::Tensor>& parameters, const std::vector<std::string_view>& names) {
  std::vector<int64_t> offsets;
  int64_t offset = 0;
  for (const at::Tensor& parameter : parameters) {
    offsets.push_back(offset);
    offset += parameter.numel();
  }
  GradBucket bucket(world(), 0, 1, gradients.clone(), offsets, parameters, names);
  return powerSGD_hook(state, bucket).wait();
}

/// Buckets change after the first pass, and when parameters are frozen or freed. What a parameter has lost,
/// and its matrices, go with it.
TEST(OddHooks, PowerSGDErrorsStayWithTheirParameters) {
  const at::Tensor a = at::zeros({8, 8}), b = at::zeros({8, 8}), bias = at::zeros({3});
  const auto make = [] {
    return std::make_shared<PowerSGDState>(
        std::nullopt, PowerSGDOptions{.start_powerSGD_iter = 2, .min_compression_rate = 1});
  };
  const auto state = make(), other = make();
  const at::Tensor lossy = wave({131}, 3 * world().rank());
  for (const auto& each : {state, other}) {
    for (int i = 0; i < 3; ++i) run_hook(each, lossy, {a, b, bias}, {"a", "b", "bias"});
  }
  CHECK_TRUE(state->errors.at("a").abs().max().item<double>() > 1e-3);
  // The bias went as it was: nothing was lost, though the ranks' values differ.
  CHECK_TRUE(state->errors.at("bias").abs().max().item<double>() == 0);
  const at::Tensor low = at::outer(wave({8}, 1), wave({8}, 2)).view({-1}), high = 2 * low;
  const at::Tensor found =
      run_hook(state, at::cat({low, high, at::ones({3})}), {a, b, bias}, {"a", "b", "bias"});
  CHECK_TRUE(!is_close(found.narrow(0, 0, 64), low, 1e-3));
  // In another order: the same for each.
  const at::Tensor swapped =
      run_hook(other, at::cat({high, low, at::ones({3})}), {b, a, bias}, {"b", "a", "bias"});
  CHECK_CLOSE(swapped.narrow(0, 64, 64), found.narrow(0, 0, 64), 1e-5, 1.0000000000000002e-6);
  CHECK_CLOSE(swapped.narrow(0, 0, 64), found.narrow(0, 64, 64), 1e-5, 1.0000000000000002e-6);
  // Parameters that it has not met have lost nothing.
  const at::Tensor exact = at::cat({low, high, at::ones({3})});
  CHECK_CLOSE(run_hook(state, exact, {a, b, bias}, {"c", "d", "bias"}), exact, 1e-3, 0.0001);
}

template <class Hook>
void refuses_complex(const char* name, Hook hook) {
  GradBucket bucket(world(), 2, 3, at::zeros({4}, at::kComplexFloat), {0},
                    {at::zeros({4}, at::kComplexFloat)}, {"weight"});
  check_throws<ValueError>([&] { hook(bucket); },
                           std::string(name) + " takes real gradients; bucket 2 holds complex ones");
}

TEST(OddHooks, LossyHooksRefuseComplexGradients) {
  refuses_complex("fp16_compress_hook", [](GradBucket& b) { return fp16_compress_hook(world(), b); });
  refuses_complex("bf16_compress_hook", [](GradBucket& b) { return bf16_compress_hook(world(), b); });
  refuses_complex("quantization_pertensor_hook",
                  [](GradBucket& b) { return quantization_pertensor_hook(world(), b); });
  refuses_complex("quantization_perchannel_hook",
                  [](GradBucket& b) { return quantization_perchannel_hook(world(), b); });
  refuses_complex("powerSGD_hook", [](GradBucket& b) { return powerSGD_hook(full_rank(false), b); });
  refuses_complex("batched_powerSGD_hook",
                  [](GradBucket& b) { return batched_powerSGD_hook(full_rank(false), b); });
  refuses_complex("adasum_hook", [](GradBucket& b) { return adasum_hook(world(), b); });
}

/// As many ranks as the job has, by the steps at which blocks of them average.
TEST(OddHooks, HierarchicalModelAveraging) {
  using Levels = std::vector<std::pair<int64_t, int>>;
  const int size = world().size(), rank = world().rank();
  const int small = size % 2 == 0 ? 2 : 1;
  const Levels levels = size > small ? Levels{{2, small}, {3, size}} : Levels{{3, size}};
  HierarchicalModelAverager averager(levels, 3);
  for (int step = 0; step < 13; ++step) {
    const at::Tensor parameter = at::full({3}, rank + 10.0 * step).requires_grad_();
    parameter.mutable_grad() = at::zeros({3});
    averager.average_parameters({parameter});
    double mean = rank;
    if (step >= 3 && step % 3 == 0) {
      mean = (size - 1) / 2.0;
    } else if (step >= 3 && step % 2 == 0 && size > small) {
      const int first_of_part = rank / small * small;
      mean = first_of_part + (small - 1) / 2.0;
    }
    CHECK_CLOSE(parameter, at::full({3}, 10.0 * step + mean), 1e-5, 1.0000000000000002e-6);
  }
  CHECK_TRUE(averager.step == 13);
  check_throws<ValueError>([] { HierarchicalModelAverager({}); }, "must not be empty");
  check_throws<ValueError>([&] { HierarchicalModelAverager({{0, size}}); }, "periods must be positive");
  check_throws<ValueError>([&] { HierarchicalModelAverager({{4, 1}, {4, size}}); }, "ascend; 4 stands where");
  check_throws<ValueError>(
      [&] {
        HierarchicalModelAverager({{2, size + 1}});
      },
      "cannot be divided into groups");
  check_throws<ValueError>([] { HierarchicalModelAverager({{2, 1}}); }, "the last group must be all");
  check_throws<ValueError>([&] { HierarchicalModelAverager({{2, size}}, -1); }, "warmup_steps must be");
}

/// Its step is the optimizer's, then the averager's.
TEST(OddHooks, PostLocalSgdOptimizer) {
  Toy model;
  DistributedDataParallel ddp(model);
  PostLocalSGDOptimizer optimizer(std::make_shared<torch::optim::SGD>(model->parameters(), 0.1),
                                  PeriodicModelAverager(2));
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    {
      const auto local = ddp.no_sync();
      toy_loss(ddp, step, world().rank()).backward();
    }
    optimizer.step();
    const auto all = world().all_gather(model->net1->weight.detach());
    const bool is_same = all.front().equal(all.back());
    CHECK_TRUE(is_same == (step % 2 == 0));
  }
  CHECK_TRUE(optimizer.averager().step == 4);
}

Future my_hook(std::nullopt_t, GradBucket& bucket) { return allreduce_hook(std::nullopt, bucket); }

TEST(OddHooks, LoggingDataNamesTheHook) {
  const auto name_of = [](const auto& add) {
    Toy model;
    DistributedDataParallel ddp(model);
    add(ddp);
    return ddp.logging_data().comm_hook;
  };
  CHECK_TRUE(name_of([](auto&) {}).empty());
  CHECK_TRUE(name_of([](auto& ddp) { ddp.register_comm_hook(std::nullopt, fp16_compress_hook); }) ==
             "fp16_compress_hook");
  CHECK_TRUE(name_of([](auto& ddp) { ddp.register_comm_hook(full_rank(false), powerSGD_hook); }) ==
             "powerSGD_hook");
  CHECK_TRUE(name_of([](auto& ddp) { register_ddp_comm_hook(DDPCommHookType::POWER_SGD_RANK2, ddp); }) ==
             "powerSGD_hook");
  CHECK_TRUE(name_of([](auto& ddp) { ddp.register_comm_hook(std::nullopt, my_hook, "mine"); }) == "mine");
  const std::string wrapped =
      name_of([](auto& ddp) { ddp.register_comm_hook(std::nullopt, fp16_compress_wrapper(allreduce_hook)); });
  CHECK_TRUE(wrapped.find("fp16_compress_wrapper") != std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
