// What a failed step puts back in a wrapper, its reducer and its hooks: the next step is as if it had not been.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/hooks/post_local_sgd_hook.h"
#include "lockstep/parallel/hooks/power_sgd_hook.h"
#include "lockstep/parallel/logical/logical_ranks.h"
#include "lockstep/parallel/model_averaging.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/step/step.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

enum class Spot {
  nowhere,
  before_forward,
  forward,
  loss,
  before_the_output,
  in_the_middle,
  after_the_last_gradient,
  later
};
constexpr std::array kSpots{
    Spot::before_forward,          Spot::forward, Spot::loss, Spot::before_the_output, Spot::in_the_middle,
    Spot::after_the_last_gradient, Spot::later};

struct Snare : torch::autograd::Function<Snare> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, bool fails) {
    context->saved_data["fails"] = fails;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (context->saved_data["fails"].toBool()) throw std::runtime_error("on purpose, in backward");
    return {gradients[0], at::Tensor()};
  }
};

/// With running statistics, in a layer that has collectives of its own.
struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    in = register_module("in", torch::nn::Linear(8, 8));
    norm = register_module("norm", BatchNorm(torch::nn::BatchNormOptions(8)));
    out = register_module("out", torch::nn::Linear(8, 8));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x, Spot place) {
    if (place == Spot::forward) throw std::runtime_error("on purpose, in forward");
    const at::Tensor h = Snare::apply(in->forward(x).tanh(), place == Spot::in_the_middle);
    return out->forward(norm->forward(h));
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  BatchNorm norm{nullptr};
};
TORCH_MODULE(Normed);

at::Tensor normed_input(int step, int rank) { return wave({6, 8}, 100 * step + 10 * rank + 3); }

void throw_at(Spot place, Spot here) {
  if (place == here) throw std::runtime_error("on purpose");
}

/// A forward and a backward; with two micro-batches, of which the first is local.
void run_normed(DistributedDataParallel<Normed>& ddp, int step, Spot place) {
  const int own = world().rank();
  ddp.zero_grad(step % 2 == 0);
  {
    const auto guard = ddp.no_sync();
    ddp(normed_input(step + 50, own), Spot::nowhere).square().sum().backward();
  }
  throw_at(place, Spot::before_forward);
  const at::Tensor older =
      Snare::apply(at::ones({1}).requires_grad_(), place == Spot::after_the_last_gradient).sum();
  const at::Tensor output =
      Snare::apply(ddp(normed_input(step, own), place), place == Spot::before_the_output);
  throw_at(place, Spot::loss);
  (output.square().sum() + older).backward();
  throw_at(place, Spot::later);
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

std::vector<at::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : module.parameters()) {
    values.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::zeros_like(parameter));
  }
  for (const at::Tensor& buffer : module.buffers()) values.push_back(buffer.clone());
  return values;
}

void check_same(const torch::nn::Module& module, const std::vector<at::Tensor>& expected,
                const std::string& what) {
  const auto values = values_of(module);
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].equal(expected[i]))
      throw std::runtime_error(fmt::format("{}: tensor {} differs", what, i));
  }
}

using Prepare = std::function<void(DistributedDataParallel<Normed>&)>;

/// Steps 1 and 2 fail; without them everything is as if they had not been.
void fail_steps(const DistributedDataParallelOptions& options, bool is_synchronized, const Prepare& prepare,
                Spot place, int failing) {
  Normed model, other;
  if (is_synchronized) {
    convert_sync_batchnorm(*model);
    convert_sync_batchnorm(*other);
  }
  DistributedDataParallel ddp(model, options), without(other, options);
  prepare(ddp);
  prepare(without);
  for (int step = 0; step < 6; ++step) {
    if (step != 1 && step != 2) {
      lockstep::step(world(), [&] { run_normed(ddp, step, Spot::nowhere); });
      lockstep::step(world(), [&] { run_normed(without, step, Spot::nowhere); });
      check_same(*model, values_of(*other), fmt::format("step {}", step));
      continue;
    }
    const auto buffers = copies_of(model->buffers());
    check_throws<StepFailedError>(
        [&] {
          lockstep::step(world(),
                         [&] { run_normed(ddp, step, world().rank() == failing ? place : Spot::nowhere); });
        },
        std::to_string(failing));
    for (const at::Tensor& parameter : model->parameters()) {
      if (parameter.grad().defined()) CHECK_EQUAL(parameter.grad(), at::zeros_like(parameter));
    }
    for (size_t i = 0; i < buffers.size(); ++i) CHECK_EQUAL(model->buffers()[i], buffers[i]);
    const at::Tensor one = at::ones({1});
    world().all_reduce(one);
    CHECK_TRUE(one.item<int>() == world().size());
  }
}

void fail_steps_everywhere(const DistributedDataParallelOptions& options, bool is_synchronized,
                           const Prepare& prepare) {
  for (const Spot place : kSpots) {
    for (const int failing : {0, world().size() - 1}) {
      // Over Gloo a failed step opens its connections anew.
      if (world().backend_name() == "gloo" && failing != static_cast<int>(place) % 2) continue;
      try {
        fail_steps(options, is_synchronized, prepare, place, failing);
      } catch (const std::exception& error) {
        throw std::runtime_error(
            fmt::format("place {}, rank {}: {}", static_cast<int>(place), failing, error.what()));
      }
    }
  }
}

const Prepare kNothing = [](DistributedDataParallel<Normed>&) {};

TEST(FailedSteps, RunningStatisticsGoBack) {
  fail_steps_everywhere({.bucket_cap_mb = kTiny}, false, kNothing);
}

/// A buffer that stands before the others in the module's list, registered in the step that fails or before it.
TEST(FailedSteps, RunningStatisticsGoBackIfTheListOfBuffersChanges) {
  for (const bool is_in_step : {true, false}) {
    Normed model;
    DistributedDataParallel ddp(model);
    lockstep::step(world(), [&] { run_normed(ddp, 0, Spot::nowhere); });
    const auto add = [&] { model->register_buffer("early", at::full({8}, 5.0)); };
    if (!is_in_step) add();
    const at::Tensor mean = model->norm->running_mean, variance = model->norm->running_var;
    const at::Tensor old_mean = mean.clone(), old_variance = variance.clone();
    check_throws<StepFailedError>(
        [&] {
          lockstep::step(world(), [&] {
            run_normed(ddp, 1, Spot::nowhere);
            if (is_in_step) add();
            run_normed(ddp, 2, Spot::nowhere);
            model->named_buffers()["early"].fill_(6);
            if (world().rank() == 0) throw std::runtime_error("on purpose");
          });
        },
        "on purpose");
    CHECK_EQUAL(mean, old_mean);
    CHECK_EQUAL(variance, old_variance);
    // In the step there was no value before it.
    if (!is_in_step) CHECK_EQUAL(model->named_buffers()["early"], at::full({8}, 5.0));
    lockstep::step(world(), [&] { run_normed(ddp, 3, Spot::nowhere); });
  }
}

TEST(FailedSteps, SyncBatchNormGoesBack) { fail_steps_everywhere({.bucket_cap_mb = kTiny}, true, kNothing); }

TEST(FailedSteps, TensorsBesideTheBucketsGoBack) {
  fail_steps_everywhere({.gradient_as_bucket_view = false}, false, kNothing);
}

TEST(FailedSteps, CountsOfAStaticGraphGoBack) {
  fail_steps_everywhere({.bucket_cap_mb = kTiny, .static_graph = true}, false, kNothing);
}

TEST(FailedSteps, PowerSgdGoesBack) {
  fail_steps_everywhere({.bucket_cap_mb = kTiny}, false, [](DistributedDataParallel<Normed>& ddp) {
    ddp.register_comm_hook(
        std::make_shared<PowerSGDState>(
            std::nullopt, PowerSGDOptions{.start_powerSGD_iter = 2, .min_compression_rate = 0.5}),
        powerSGD_hook);
  });
}

TEST(FailedSteps, PostLocalSgdGoesBack) {
  const auto state = std::make_shared<PostLocalSGDState>(std::nullopt, world().duplicate(), 3);
  PeriodicModelAverager averager(2);
  const at::Tensor parameter = at::ones({2}).requires_grad_();
  parameter.mutable_grad() = at::ones({2});
  Normed model;
  DistributedDataParallel ddp(model);
  ddp.register_comm_hook(state, post_localSGD_hook);
  for (int step = 0; step < 3; ++step) {
    check_throws<StepFailedError>(
        [&] {
          lockstep::step(world(), [&] {
            run_normed(ddp, step, Spot::nowhere);
            averager.average_parameters({parameter});
            if (world().rank() == 0) throw std::runtime_error("on purpose");
          });
        },
        "on purpose");
    CHECK_TRUE(state->iter == step);
    CHECK_TRUE(averager.step == step);
    lockstep::step(world(), [&] {
      run_normed(ddp, step, Spot::nowhere);
      averager.average_parameters({parameter});
    });
    CHECK_TRUE(state->iter == step + 1);
    CHECK_TRUE(averager.step == step + 1);
  }
}

/// In the first step, at whose end the ranks agree on an order of the buckets, and in one that has frozen or freed a
/// parameter.
TEST(FailedSteps, TheLayoutGoesBack) {
  for (const bool is_first : {false, true}) {
    for (const Spot place : kSpots) {
      Normed model, other;
      DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny}), without(other, {.bucket_cap_mb = kTiny});
      const auto freeze = [&](Normed& module, bool freezes) {
        module->zero_grad();
        module->in->bias.set_requires_grad(!freezes);
      };
      int step = 0;
      const auto fail = [&] {
        check_throws<StepFailedError>(
            [&] {
              lockstep::step(world(),
                             [&] { run_normed(ddp, step, world().rank() == 0 ? place : Spot::nowhere); });
            },
            "on purpose");
        ++step;
      };
      const auto succeed = [&] {
        lockstep::step(world(), [&] { run_normed(ddp, step, Spot::nowhere); });
        lockstep::step(world(), [&] { run_normed(without, step, Spot::nowhere); });
        check_same(*model, values_of(*other),
                   fmt::format("place {}, step {}", static_cast<int>(place), step));
        ++step;
      };
      if (is_first) fail();
      succeed();
      freeze(model, true);
      fail();
      freeze(model, false);
      succeed();
      freeze(model, true);
      freeze(other, true);
      fail();
      succeed();
      succeed();
      freeze(model, false);
      fail();
      freeze(model, true);
      succeed();
      freeze(model, false);
      freeze(other, false);
      fail();
      succeed();
      succeed();
    }
  }
}

/// One of several logical ranks of a process fails: the first or the last, before or after its backward.
TEST(FailedSteps, LogicalRanksGoBack) {
  ONLY_IF(world().size() == 2 || world().size() == 4);
  for (const bool in_last : {false, true}) {
    for (const bool is_synchronized : {false, true}) {
      for (const bool is_late : {false, true}) {
        Normed model, other;
        if (is_synchronized) {
          convert_sync_batchnorm(*model);
          convert_sync_batchnorm(*other);
        }
        DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny}),
            without(other, {.bucket_cap_mb = kTiny});
        LogicalRanks ranks(ddp, {.size = 8}), ranks_without(without, {.size = 8});
        const int failing = in_last ? ranks.own().back() : ranks.own().front();
        const auto run_step = [&](LogicalRanks& of, DistributedDataParallel<Normed>& through, int step,
                                  bool fails) {
          lockstep::step(world(), [&] {
            of.run_step(static_cast<uint64_t>(step), 1, [&](const LogicalPass& pass) {
              const bool is_it = fails && pass.rank == failing;
              if (is_it && !is_late) throw std::runtime_error("on purpose");
              through(normed_input(step, pass.rank), Spot::nowhere).square().sum().backward();
              if (is_it) throw std::runtime_error("on purpose");
            });
          });
        };
        for (int step = 0; step < 4; ++step) {
          if (step == 1) {
            const auto buffers = copies_of(model->buffers());
            check_throws<StepFailedError>([&] { run_step(ranks, ddp, step, world().rank() == 0); },
                                          "on purpose");
            for (const at::Tensor& parameter : model->parameters()) {
              if (parameter.grad().defined()) CHECK_EQUAL(parameter.grad(), at::zeros_like(parameter));
            }
            for (size_t i = 0; i < buffers.size(); ++i) CHECK_EQUAL(model->buffers()[i], buffers[i]);
            continue;
          }
          run_step(ranks, ddp, step, false);
          run_step(ranks_without, without, step, false);
          check_same(*model, values_of(*other), fmt::format("step {}", step));
        }
      }
    }
  }
}

/// An output of a failed step leads into no later one.
TEST(FailedSteps, AnOutputThatIsKept) {
  const int own = world().rank();
  Normed model;
  DistributedDataParallel ddp(model);
  at::Tensor kept;
  check_throws<StepFailedError>(
      [&] {
        lockstep::step(world(), [&] {
          kept = ddp(normed_input(0, own), Spot::nowhere);
          if (own == 0) throw std::runtime_error("on purpose");
          kept.sum().backward();
        });
      },
      "on purpose");
  check_throws<StepFailedError>(
      [&] {
        lockstep::step(world(), [&] {
          const at::Tensor output = ddp(normed_input(1, own), Spot::nowhere);
          (own == 0 ? kept : output).sum().backward();
        });
      },
      "of a step that has failed");
  lockstep::step(world(), [&] { run_normed(ddp, 2, Spot::nowhere); });
}

}  // namespace
}  // namespace lockstep::testing
