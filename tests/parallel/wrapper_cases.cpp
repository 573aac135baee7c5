// The wrapper used as a module; what ranks must have in common; one rank's state for all.
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/serialize.h>

#include <functional>
#include <sstream>
#include <string>

#include "lockstep/optim/adamw.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/parallel/join.h"
#include "lockstep/parallel/sync_module_states.h"
#include "lockstep/step/step.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

TEST(Wrapper, FeelsLikeTheModule) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model);
  CHECK_TRUE(ddp.module()->net1->weight.is_same(model->net1->weight));
  CHECK_TRUE(ddp->parameters().size() == 4);
  CHECK_TRUE(ddp.parameters().size() == 4);
  ddp->to(at::kCPU);
  ddp->to(at::Device(at::kCPU, 0));
  check_throws<Error>([&] { ddp->to(at::kMeta); }, "to(meta): \"net1.weight\" is on cpu");
  CHECK_TRUE(ddp.parameters()[0].is_same(model->net1->weight));
  CHECK_TRUE(ddp.named_parameters().keys() == model->named_parameters().keys());
  CHECK_TRUE(ddp.named_buffers().is_empty());
  CHECK_TRUE(ddp.buffers().empty());
  ddp.eval();
  CHECK_TRUE(!model->is_training());
  CHECK_TRUE(!ddp.is_training());
  ddp.train();
  CHECK_TRUE(model->net2->is_training());
  toy_loss(ddp, 0, own).backward();
  ddp.zero_grad();
  CHECK_TRUE(!model->net1->weight.grad().defined());
  // What it saves is the module's, and the other way round.
  std::stringstream file;
  torch::save(ddp, file);
  Toy bare;
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : bare->parameters()) parameter.zero_();
  }
  torch::load(bare, file);
  CHECK_EQUAL(bare->net2->weight, model->net2->weight);
  {
    const torch::NoGradGuard no_grad;
    bare->net2->weight.fill_(3);
  }
  std::stringstream other;
  torch::save(bare, other);
  torch::load(ddp, other);
  CHECK_EQUAL(model->net2->weight, bare->net2->weight);
  torch::nn::AnyModule any(Toy{});
  DistributedDataParallel of_any(any);
  CHECK_TRUE(of_any->named_parameters().size() == 4);
}

/// The wrapper under the name that the module's holder had: the loop that was written for the holder averages.
TEST(Wrapper, StandsForItsHolder) {
  const int own = world().rank();
  const auto train = [&](auto& model) {
    model->train();
    model->zero_grad();
    torch::mse_loss(model->forward(batch_input(0, own)), at::zeros({20, 5})).backward();
    return model->parameters()[0].grad().clone();
  };
  Toy bare, wrapped;
  sync_module_states(*bare);
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < 4; ++i) wrapped->parameters()[i].copy_(bare->parameters()[i]);
  }
  const at::Tensor own_gradient = train(bare);
  at::Tensor mean = own_gradient.clone();
  world().all_reduce(mean, {.op = ReduceOp::AVG});
  DistributedDataParallel ddp(wrapped);
  CHECK_CLOSE(train(ddp), mean, 1e-5, 1e-8);
  if (world().size() > 1) CHECK_TRUE(!at::allclose(own_gradient, mean));
  // A const wrapper, as a function takes it.
  const auto& only_read = ddp;
  CHECK_TRUE(only_read->parameters().size() == 4);
  CHECK_TRUE(parameters(only_read).size() == 4);
}

/// Guards as they are written for the micro-batches of a step: in an optional, by a condition, nested.
/// What `call` writes to standard error.
std::string errors_of(const std::function<void()>& call) {
  ::testing::internal::CaptureStderr();
  call();
  return ::testing::internal::GetCapturedStderr();
}

/// `ddp.module()->forward(x)` is the bare module's: its gradients are not averaged, which must not pass without a word.
TEST(Wrapper, ABareForwardIsTold) {
  const int own = world().rank();
  const bool is_told = world().size() > 1;
  Toy model;
  DistributedDataParallel ddp(model);
  const auto run_bare = [&] { ddp.module()->forward(batch_input(0, own)).sum().backward(); };
  const auto tells = [&](const std::function<void()>& call) {
    const std::string text = errors_of(call);
    return text.find("ddp.module() is the bare module") != std::string::npos;
  };
  // The first may be a penalty on the weights, which the forward follows. Then once.
  CHECK_TRUE(!tells(run_bare));
  CHECK_TRUE(tells(run_bare) == is_told);
  CHECK_TRUE(!tells(run_bare));
  // What a program that uses the wrapper does with the module alone is its own.
  DistributedDataParallel used(model);
  CHECK_TRUE(!tells([&] {
    run_bare();
    toy_loss(used, 0, own).backward();
    run_bare();
    run_bare();
  }));
  DistributedDataParallel local(model);
  CHECK_TRUE(!tells([&] {
    const auto guard = local.no_sync();
    toy_loss(local, 0, own).backward();
    run_bare();
    run_bare();
  }));
}

TEST(Wrapper, ABareForwardFailsItsStep) {
  const int own = world().rank(), last = world().size() - 1;
  Toy model;
  DistributedDataParallel ddp(model);
  const auto run = [&](bool is_bare) {
    lockstep::step(world(), [&] {
      if (is_bare) {
        ddp.module()->forward(batch_input(0, own)).sum().backward();
      } else {
        toy_loss(ddp, 0, own).backward();
      }
    });
  };
  if (last > 0) {
    // On all ranks, and on one of them.
    check_throws<StepFailedError>([&] { run(/*is_bare=*/true); }, "");
    check_throws<StepFailedError>([&] { run(own == last); }, fmt::format("rank {}", last));
    for (const at::Tensor& parameter : model->parameters())
      CHECK_TRUE(!parameter.grad().defined() || parameter.grad().eq(0).all().item<bool>());
  }
  // A penalty on the weights, micro-batches on this rank first, and a local backward after the pass.
  lockstep::step(world(), [&] {
    at::Tensor late;
    model->net1->weight.square().sum().backward();
    {
      const auto guard = ddp.no_sync();
      toy_loss(ddp, 0, own).backward();
      late = toy_loss(ddp, 1, own);
    }
    toy_loss(ddp, 2, own).backward();
    late.backward();
  });
  run(/*is_bare=*/false);
}

/// A head on a trunk that several models have in common.
struct HeadOnTrunk : torch::nn::Module {
  explicit HeadOnTrunk(const torch::nn::Linear& common) {
    trunk = register_module("trunk", common);
    head = register_module("head", torch::nn::Linear(5, 3));
  }
  at::Tensor forward(const at::Tensor& x, bool uses_trunk) {
    return head->forward(uses_trunk ? trunk->forward(x) : x.narrow(1, 0, 5));
  }
  torch::nn::Linear trunk{nullptr}, head{nullptr};
};

/// The trunk has hooks of both wrappers. What one of them averages is no bare backward of the other.
TEST(Wrapper, TwoWrappersOfOneTrunkTakeTurns) {
  const int own = world().rank();
  const torch::nn::Linear trunk(10, 5);
  DistributedDataParallel first(std::make_shared<HeadOnTrunk>(trunk)),
      second(std::make_shared<HeadOnTrunk>(trunk));
  const auto loss = [&](auto& ddp, int number) {
    return ddp(batch_input(number, own), /*uses_trunk=*/true).square().sum();
  };
  const auto train = [&](auto& ddp, int number, bool has_penalty) {
    ddp.zero_grad();
    if (has_penalty) ddp.module()->trunk->weight.square().sum().backward();
    {
      const auto local = ddp.no_sync();
      loss(ddp, number).backward();
    }
    loss(ddp, number + 1).backward();
  };
  const auto check_averaged = [&](const torch::nn::Module& module) {
    for (const at::Tensor& parameter : module.parameters()) {
      for (const at::Tensor& theirs : world().all_gather(parameter.grad()))
        CHECK_EQUAL(theirs, parameter.grad());
    }
  };
  const std::string told = errors_of([&] {
    for (int number = 0; number < 3; ++number) train(first, number, /*has_penalty=*/false);
  });
  CHECK_TRUE(told.find("no forward of the wrapper") == std::string::npos);
  for (int number = 0; number < 4; ++number) {
    auto& ddp = number % 2 == 0 ? first : second;
    lockstep::step(world(), [&] { train(ddp, 10 * number, /*has_penalty=*/number >= 2); });
    check_averaged(*ddp.module());
  }
  if (world().size() == 1) return;
  // A bare backward of the other model still reaches its head.
  check_throws<StepFailedError>(
      [&] {
        lockstep::step(world(), [&] {
          loss(first, 0).backward();
          second.module()->forward(batch_input(1, own), /*uses_trunk=*/true).sum().backward();
        });
      },
      "a backward has reached \"head.weight\"");
}

TEST(Wrapper, WhatAnotherWrapperHasAveragedWasNotUsed) {
  const int own = world().rank();
  const torch::nn::Linear trunk(10, 5);
  DistributedDataParallel first(std::make_shared<HeadOnTrunk>(trunk));
  DistributedDataParallel second(std::make_shared<HeadOnTrunk>(trunk), {.find_unused_parameters = true});
  first(batch_input(0, own), /*uses_trunk=*/true).sum().backward();
  first.zero_grad();
  CHECK_TRUE(!trunk->weight.grad().defined());
  second(batch_input(1, own), /*uses_trunk=*/false).sum().backward();
  CHECK_TRUE(second.module()->head->weight.grad().defined());
  CHECK_TRUE(!trunk->weight.grad().defined());
}

TEST(Wrapper, GuardsAgainstAveragingMoveAndNest) {
  const int own = world().rank(), size = world().size();
  const at::Tensor weight = at::zeros({4}).requires_grad_();
  struct Scale : torch::nn::Module {
    explicit Scale(at::Tensor of) { weight = register_parameter("weight", std::move(of)); }
    at::Tensor forward(const at::Tensor& x) { return (weight * x).sum(); }
    at::Tensor weight;
  };
  DistributedDataParallel ddp(std::make_shared<Scale>(weight));
  const auto backward = [&] { ddp(at::full({4}, own + 1.)).backward(); };
  const at::Tensor local = at::full({4}, own + 1.), average = at::full({4}, (size + 1) / 2.);
  const auto check = [&](int64_t locals, int64_t averages, const std::string& what) {
    if (!at::allclose(weight.grad(), locals * local + averages * average)) {
      throw std::runtime_error(fmt::format("{}: {}", what, weight.grad()[0].item<double>()));
    }
    ddp.zero_grad();
  };
  std::optional<decltype(ddp.no_sync())> guard;
  for (int micro = 0; micro < 4; ++micro) {
    if (micro < 3) {
      guard.emplace(ddp.no_sync());  // the new one begins before the old one ends
    } else {
      guard.reset();
    }
    backward();
    if (micro == 2) CHECK_CLOSE(weight.grad(), 3 * local, 1e-5, 1e-8);
  }
  check(0, 4, "in an optional");
  for (int micro = 0; micro < 2; ++micro) {
    const auto guarded = ddp.no_sync(micro + 1 < 2);
    backward();
  }
  check(0, 2, "by a condition");
  {
    auto outer = ddp.no_sync();
    {
      const auto none = ddp.no_sync(/*is_wanted=*/false);
      const auto inner = std::move(outer);
      backward();
      outer = ddp.no_sync();
    }
    backward();  // `outer` lives
    check(2, 0, "moved");
    outer = ddp.no_sync(/*is_wanted=*/false);
    backward();
  }
  check(0, 1, "ended by an assignment");
}

/// A new wrapper has the buckets of the old one from the first pass on, and goes on within a step.
TEST(Wrapper, StateIsSavedAndLoaded) {
  const int own = world().rank();
  // Its layers are used in another order than that in which they are registered.
  struct Backwards : torch::nn::Module {
    Backwards() {
      last = register_module("last", torch::nn::Linear(4, 4));
      first = register_module("first", torch::nn::Linear(4, 4));
    }
    at::Tensor forward(const at::Tensor& x) { return last(first(x)); }
    torch::nn::Linear first{nullptr}, last{nullptr};
  };
  const auto model = std::make_shared<Backwards>();
  const auto backward = [&](auto& ddp, int step) {
    ddp(wave({3, 4}, 10 * step + own)).square().sum().backward();
  };
  const DistributedDataParallelOptions options{.bucket_cap_mb = kTiny, .backward_passes_per_step = 2};
  StateDict saved;
  std::vector<std::string> order;
  {
    DistributedDataParallel ddp(model, options);
    CHECK_TRUE(ddp.state_dict().scalars.size() == 1);
    for (int step = 0; step < 3; ++step) backward(ddp, step);
    saved = ddp.state_dict();
    order = ddp.logging_data().grad_ready_order;
    CHECK_TRUE(order.size() == 4);
    CHECK_TRUE(order[0].starts_with("last"));
  }
  DistributedDataParallel ddp(model, options);
  ddp.load_state_dict(saved);
  model->zero_grad();
  backward(ddp, 3);  // the second of a step: averages
  for (const at::Tensor& theirs : world().all_gather(model->first->weight.grad())) {
    CHECK_EQUAL(theirs, model->first->weight.grad());
  }
  CHECK_TRUE(ddp.logging_data().grad_ready_order == order);
  CHECK_TRUE(ddp.logging_data().has_rebuilt_buckets);
  CHECK_TRUE(ddp.state_dict().scalars.at("ready_order.first.bias") ==
             saved.scalars.at("ready_order.first.bias"));
  saved.scalars["ready_order.other"] = int64_t{9};
  check_throws<ValueError>([&] { ddp.load_state_dict(saved); }, "names parameter other, which");
  check_throws<ValueError>([&] { ddp.load_state_dict({}); }, "the state has no \"forwards_in_step\"");
}

TEST(Wrapper, OptionsThatDifferAreNamed) {
  Toy model;
  check_throws<Error>(
      [&] { DistributedDataParallel ddp(model, {.find_unused_parameters = world().rank() == 0}); },
      "rank 0 has option find_unused_parameters true, rank 1 has option find_unused_parameters false");
  const auto refuses = [&](const DistributedDataParallelOptions& of_rank_0, const std::string& part) {
    const DistributedDataParallelOptions options =
        world().rank() == 0 ? of_rank_0 : DistributedDataParallelOptions{};
    check_throws<Error>([&] { DistributedDataParallel ddp(model, options); }, part);
  };
  refuses({.bucket_cap_mb = 12}, "rank 0 has option bucket_cap_mb of");
  refuses({.first_bucket_cap_mb = 2}, "rank 0 has option bucket_cap_mb of");
  refuses({.bucket_cap_mb_list = {1, 2}}, "rank 0 has option bucket_cap_mb of");
  refuses({.broadcast_buffers = false}, "rank 0 has option forward_sync_buffers false");
  refuses({.init_sync = false}, "rank 0 has option init_sync false");
  refuses({.static_graph = true}, "rank 0 has option static_graph true");
  refuses({.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}},
          "rank 0 has option mixed_precision");
  refuses({.backward_passes_per_step = 2}, "rank 0 has option backward_passes_per_step 2");
  refuses({.parameters_and_buffers_to_ignore = {"net2.bias"}}, "rank 1 has parameter net2.bias");
  // Where gradients lie is each rank's own.
  DistributedDataParallel ddp(model, {.gradient_as_bucket_view = world().rank() == 0});
  toy_loss(ddp, 0, world().rank()).backward();
  check_gradients(*model, expected_toy_gradients(0));
}

TEST(Wrapper, ModuleStatesOfOneRankForAll) {
  const int own = world().rank(), source = world().size() - 1;
  Toy model;
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.fill_(own + 1);
  }
  sync_module_states(*model, {.src = source});
  for (const at::Tensor& parameter : model->parameters()) CHECK_EACH(parameter, source + 1);
  torch::nn::BatchNorm1d norm(3);
  norm->running_mean.fill_(own + 1);
  norm->running_var.fill_(own + 2);
  norm->num_batches_tracked.fill_(own + 3);
  sync_module_states(*norm, {.src = source});
  CHECK_EACH(norm->running_mean, source + 1);
  CHECK_EACH(norm->running_var, source + 2);
  CHECK_TRUE(norm->num_batches_tracked.item<int64_t>() == source + 3);
  torch::nn::Linear other(4, own == 0 ? 3 : 2);
  check_throws<Error>([&] { sync_module_states(*other); },
                      "sync_module_states: the ranks' modules or options differ");
}

TEST(Wrapper, OptimizerStateOfOneRankForAll) {
  const int own = world().rank();
  const at::Tensor parameter = at::full({3}, 1.0).requires_grad_();
  FusedAdamW optimizer({parameter}, torch::optim::AdamWOptions(own == 0 ? 0.5 : 0.1));
  // Only one rank has taken steps, as after loading a checkpoint there.
  for (int step = 0; own == 0 && step < 2; ++step) {
    parameter.mutable_grad() = at::full({3}, 2.0);
    optimizer.step();
  }
  broadcast_optimizer_state(optimizer);
  world().broadcast(parameter.detach());
  parameter.mutable_grad() = at::full({3}, 1.0);
  optimizer.step();
  for (const at::Tensor& theirs : world().all_gather(parameter.detach())) CHECK_EQUAL(theirs, parameter);
  CHECK_TRUE(optimizer.param_groups()[0].options().get_lr() == 0.5);
}

/// Three ranks of four have inputs: a third of a sum is rounded once, to bfloat16, and not twice.
TEST(Wrapper, JoinInHalfPrecisionRoundsOnce) {
  ONLY_IF(world().size() == 4);
  struct Scale : torch::nn::Module {
    Scale() { weight = register_parameter("weight", at::full({64}, 1.0, at::kBFloat16)); }
    at::Tensor forward(const at::Tensor& x) { return (weight * x).sum(); }
    at::Tensor weight;
  };
  const auto input = [](int rank) { return wave({64}, 3 * rank + 1).to(at::kBFloat16); };
  const auto model = std::make_shared<Scale>();
  DistributedDataParallel ddp(model);
  at::Tensor found;
  join({ddp},
       [&] {
         if (world().rank() == 3) return;
         ddp(input(world().rank())).backward();
         found = model->weight.grad().clone();
       },
       {.divide_by_initial_world_size = false});
  if (world().rank() == 3) return;
  const auto wide = [&](int rank) { return input(rank).to(at::kFloat); };
  const at::Tensor expected = ((wide(0) + wide(1)) + wide(2)).div(3).to(at::kBFloat16);
  CHECK_EQUAL(found, expected);
}

}  // namespace
}  // namespace lockstep::testing
