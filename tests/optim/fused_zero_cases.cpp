// FusedZeroRedundancyOptimizer beside DistributedDataParallel with the whole optimizer on every rank.
#include "lockstep/optim/fused_zero_optimizer.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/serialize.h>

#include <chrono>
#include <limits>
#include <sstream>
#include <thread>

#include "lockstep/optim/adamw.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/optim/zero_redundancy_optimizer.h"
#include "tests/optim/zero_cases.h"

namespace lockstep::testing {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

struct Run {
  std::vector<at::Tensor> parameters;
  std::vector<double> norms;
};

template <class Ddp, class Optimizer, class Clip>
void train(Run& run, Ddp& ddp, Optimizer& optimizer, const Clip& clip, int from, int to) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    set_lr(optimizer, 0.05 / (step + 1));
    {
      const auto local = ddp.no_sync();
      toy_loss(ddp, 100 + step, world().rank()).backward();
    }
    toy_loss(ddp, step, world().rank()).backward();
    run.norms.push_back(clip(optimizer));
    optimizer.step();
  }
}

std::vector<at::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : module.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

void check_equal(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  CHECK_TRUE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) CHECK_EQUAL(found[i], expected[i]);
}

constexpr int kSteps = 4;

std::vector<torch::optim::OptimizerParamGroup> groups_of(const Wide& model, const AdamWOptions& options) {
  return parameter_groups(*model, options);
}
template <class Options>
std::vector<torch::optim::OptimizerParamGroup> groups_of(const Wide& model, const Options& /*options*/) {
  return {torch::optim::OptimizerParamGroup(model->parameters())};
}

at::Tensor first_state(const torch::optim::OptimizerParamState& state) {
  using namespace torch::optim;
  if (const auto* adamw = dynamic_cast<const AdamWParamState*>(&state)) return adamw->exp_avg();
  if (const auto* adam = dynamic_cast<const AdamParamState*>(&state)) return adam->exp_avg();
  if (const auto* adagrad = dynamic_cast<const AdagradParamState*>(&state)) return adagrad->sum();
  if (const auto* rmsprop = dynamic_cast<const RMSpropParamState*>(&state)) return rmsprop->square_avg();
  return dynamic_cast<const torch::optim::SGDParamState&>(state).momentum_buffer();
}

/// max_norm: 0 without clipping.
template <class OptimizerT, class Options>
void same_bits(const Options& options, double max_norm) {
  Wide plain_model;
  OptimizerT plain(groups_of(plain_model, options), options);
  Run expected;
  {
    DistributedDataParallel ddp(plain_model);
    train(
        expected, ddp, plain,
        [&](auto&) { return max_norm > 0 ? clip_grad_norm_(plain_model->parameters(), max_norm) : 0.0; }, 0,
        kSteps);
  }
  for (const bool shared : {false, true}) {
    for (const double cap : {kTiny, 0.02, 25.0}) {
      Wide model;
      DistributedDataParallel ddp(model, {.bucket_cap_mb = cap, .first_bucket_cap_mb = cap});
      FusedZeroRedundancyOptimizer<OptimizerT> fused(ddp, groups_of(model, options), options,
                                                     {.shared_parameters = shared});
      Run run;
      const auto clip = [&](auto& optimizer) {
        return max_norm > 0 ? optimizer.clip_grad_norm_(max_norm) : 0.0;
      };
      train(run, ddp, fused, clip, 0, kSteps);
      check_equal(values_of(*model), values_of(*plain_model));
      CHECK_TRUE(run.norms == expected.norms);
      // What a plain optimizer has, and would write; and from there on again.
      const int to = world().size() - 1;
      fused.consolidate_state_dict(to);
      std::string saved;
      if (world().rank() == to) {
        for (size_t p = 0; p < model->parameters().size(); ++p) {
          const auto state = [&](const torch::optim::Optimizer& optimizer, const Wide& of) {
            return first_state(*optimizer.state().at(of->parameters()[p].unsafeGetTensorImpl()));
          };
          CHECK_EQUAL(state(fused.state_dict(), model), state(plain, plain_model));
        }
        std::ostringstream stream;
        torch::save(fused, stream);
        saved = stream.str();
      }
      saved = world().broadcast_bytes(saved, {.src = to});
      Wide next_model;
      for (size_t p = 0; p < model->parameters().size(); ++p) {
        next_model->parameters()[p].detach().copy_(model->parameters()[p]);
      }
      OptimizerT next(groups_of(next_model, options), options);
      std::istringstream for_plain(saved), for_fused(saved);
      torch::load(next, for_plain);
      Wide third_model;
      for (size_t p = 0; p < model->parameters().size(); ++p) {
        third_model->parameters()[p].detach().copy_(model->parameters()[p]);
      }
      DistributedDataParallel next_ddp(next_model), third_ddp(third_model);
      FusedZeroRedundancyOptimizer<OptimizerT> third(third_ddp, groups_of(third_model, options), options,
                                                     {.shared_parameters = !shared});
      torch::load(third, for_fused);
      Run more;
      train(
          more, next_ddp, next,
          [&](auto&) { return max_norm > 0 ? clip_grad_norm_(next_model->parameters(), max_norm) : 0.0; },
          kSteps, kSteps + 1);
      train(more, third_ddp, third, clip, kSteps, kSteps + 1);
      check_equal(values_of(*third_model), values_of(*next_model));
    }
  }
}

constexpr double kClips = 0.01, kClipsNothing = 1e9;

TEST(FusedZero, AdamwWithoutClipping) {
  ONLY_IF(world().backend_name() == "lockstep");
  same_bits<FusedAdamW>(AdamWOptions(0.05).weight_decay(0.1), 0);
}
TEST(FusedZero, AdamwWithClipping) {
  ONLY_IF(world().backend_name() == "lockstep");
  same_bits<FusedAdamW>(AdamWOptions(0.05).weight_decay(0.1).amsgrad(true), kClips);
}
TEST(FusedZero, SgdWithClipping) {
  ONLY_IF(world().backend_name() == "lockstep");
  same_bits<FusedSGD>(SGDOptions(0.05).momentum(0.9), kClips);
  same_bits<FusedSGD>(SGDOptions(0.05).momentum(0.9), kClipsNothing);
}

TEST(FusedZero, ClippingByOtherNorms) {
  ONLY_IF(world().backend_name() == "lockstep");
  Wide model;
  DistributedDataParallel ddp(model);
  FusedZeroRedundancyOptimizer<FusedSGD> fused(ddp, SGDOptions(0.05));
  Wide plain_model;
  DistributedDataParallel plain(plain_model);
  const auto backward = [](auto& of) {
    of.zero_grad();
    toy_loss(of, 0, world().rank()).backward();
  };
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double norm_type : {0.0, 1.0, 2.0, 3.0, infinity}) {
    backward(ddp);
    backward(plain);
    const double expected = clip_grad_norm_(plain_model->parameters(), kClips, norm_type);
    CHECK_TRUE(expected > 0);
    CHECK_TRUE(fused.grad_norm(norm_type) == expected);
    CHECK_TRUE(fused.clip_grad_norm_(kClips, norm_type) == expected);
  }
  EXPECT_THROW(fused.clip_grad_norm_(1, -1), ValueError);
  // One rank's gradient is not finite: all are told, and none is scaled.
  backward(ddp);
  at::Tensor gradient = model->parameters().front().grad();
  const at::Tensor before = model->parameters().back().grad().clone();
  gradient.fill_(infinity);
  EXPECT_THROW(fused.clip_grad_norm_(kClips, 2, /*error_if_nonfinite=*/true), Error);
  CHECK_EQUAL(model->parameters().back().grad(), before);
}

/// LibTorch's own, which know nothing of slices.
TEST(FusedZero, OtherOptimizersWithAndWithoutClipping) {
  ONLY_IF(world().backend_name() == "lockstep");
  using namespace torch::optim;
  for (const double max_norm : {0.0, kClips}) {
    same_bits<torch::optim::SGD>(SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.1), max_norm);
    same_bits<Adam>(AdamOptions(0.05).weight_decay(0.1).amsgrad(true), max_norm);
    same_bits<AdamW>(AdamWOptions(0.05).weight_decay(0.1), max_norm);
    same_bits<Adagrad>(AdagradOptions(0.05).lr_decay(0.01).weight_decay(0.1), max_norm);
    same_bits<RMSprop>(RMSpropOptions(0.05).momentum(0.9).centered(true), max_norm);
  }
}

/// A parameter is no larger to a file, or to another program, than it was.
TEST(FusedZero, ParametersStayWhatTheyAre) {
  ONLY_IF(world().backend_name() == "lockstep");
  for (const bool shared : {false, true}) {
    Wide model;
    DistributedDataParallel ddp(model);
    const auto before = values_of(*model);
    FusedZeroRedundancyOptimizer<FusedAdamW> fused(ddp, AdamWOptions(0.1), {.shared_parameters = shared});
    check_equal(values_of(*model), before);
    for (const at::Tensor& parameter : model->parameters()) {
      CHECK_TRUE(parameter.storage().nbytes() == parameter.nbytes());
      CHECK_TRUE(parameter.is_leaf());
      CHECK_TRUE(parameter.requires_grad());
    }
    // One copy for the ranks of a machine, or one for each rank.
    world().barrier();
    if (world().rank() == 0) model->net1->weight.detach().fill_(7);
    world().barrier();
    const bool sees_it = model->net1->weight.detach().eq(7).all().item<bool>();
    CHECK_TRUE(sees_it == ((shared && world().group_rank() == 0) || world().rank() == 0));
    world().barrier();
  }
}

/// Rank 0 is in step() while the others are in backward, with all gradients delivered: nothing moves under
/// them.
TEST(FusedZero, NoParameterChangesUnderABackwardPass) {
  ONLY_IF(world().backend_name() == "lockstep");
  for (const bool shared : {false, true}) {
    Wide model;
    DistributedDataParallel ddp(model);
    FusedZeroRedundancyOptimizer<FusedAdamW> fused(ddp, AdamWOptions(0.1), {.shared_parameters = shared});
    for (int step = 0; step < 2; ++step) {
      fused.zero_grad();
      const at::Tensor input = batch_input(step, world().rank()).requires_grad_() * 1;
      const auto before = values_of(*model);
      bool held = false;
      // Reached when every parameter has its gradient.
      input.register_hook([&](const at::Tensor& /*gradient*/) {
        if (world().rank() == 0) return;
        for (const at::Tensor& parameter : model->parameters()) CHECK_TRUE(parameter.grad().defined());
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        check_equal(values_of(*model), before);
        held = true;
      });
      at::mse_loss(ddp(input), batch_target(step, world().rank())).backward();
      CHECK_TRUE(held == (world().rank() != 0));
      if (world().rank() != 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        check_equal(values_of(*model), before);
      }
      fused.step();
      CHECK_TRUE(!at::equal(model->net2->weight, before[2]));
    }
  }
}

/// Parameters that take part now and then, on some ranks or on none, and one that comes later.
// On every rank: it must not depend on whose slice a parameter is.
TEST(FusedZero, ABackwardThroughParametersThatAStepHasChangedIsAnError) {
  ONLY_IF(world().backend_name() == "lockstep");
  Toy model;
  DistributedDataParallel ddp(model);
  FusedZeroRedundancyOptimizer<FusedAdamW> optimizer(ddp, AdamWOptions(0.05));
  toy_loss(ddp, 0, world().rank()).backward();
  std::vector<uint32_t> before;
  for (const at::Tensor& parameter : model->parameters()) before.push_back(parameter._version());
  const at::Tensor late = (model->net1->weight * model->net1->weight).sum();
  optimizer.step();
  for (size_t p = 0; p < before.size(); ++p) EXPECT_NE(model->parameters()[p]._version(), before[p]) << p;
  EXPECT_ANY_THROW(torch::autograd::grad({late}, {model->net1->weight}));
}

TEST(FusedZero, UnusedAndAddedParameters) {
  ONLY_IF(world().backend_name() == "lockstep");
  std::vector<at::Tensor> expected;
  for (const int form : {0, 1, 2}) {  // plain, fused, fused and shared
    TwoHeads model;
    model->right->weight.requires_grad_(false);
    DistributedDataParallel ddp(model, {.find_unused_parameters = true});
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    FusedZeroRedundancyOptimizer<FusedSGD>* fused = nullptr;
    const auto options = SGDOptions(0.1).momentum(0.9);
    if (form == 0) {
      std::vector<at::Tensor> trained = model->parameters();
      std::erase_if(trained, [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
      optimizer = std::make_unique<FusedSGD>(trained, options);
    } else {
      auto made = std::make_unique<FusedZeroRedundancyOptimizer<FusedSGD>>(
          ddp, options, FusedZeroRedundancyOptimizerOptions{.shared_parameters = form == 2});
      fused = made.get();
      optimizer = std::move(made);
    }
    for (int step = 0; step < 9; ++step) {
      if (step == 4) {
        model->right->weight.requires_grad_(true);
        const torch::optim::OptimizerParamGroup group({model->right->weight});
        fused != nullptr ? fused->add_param_group(group) : optimizer->add_param_group(group);
      }
      fused != nullptr ? fused->zero_grad() : optimizer->zero_grad();
      const auto [left, right] = ddp(wave({6, 4}, 10 * step + world().rank()));
      const bool uses_right = step % 3 == 0 || (step % 3 == 1 && world().rank() == 0);
      (uses_right ? left + right : left).square().sum().backward();
      optimizer->step();
    }
    if (form == 0) expected = values_of(*model);
    check_equal(values_of(*model), expected);
  }
}

TEST(FusedZero, WrongUseOfTheFusedOne) {
  ONLY_IF(world().backend_name() == "lockstep");
  using Fused = FusedZeroRedundancyOptimizer<FusedAdamW>;
  Wide model;
  DistributedDataParallel ddp(model);
  check_throws<ValueError>(
      [&] { Fused(ddp, {torch::optim::OptimizerParamGroup({model->net1->weight})}, AdamWOptions(0.1)); },
      "parameter net1.bias is trained but in none of the groups");
  Fused fused(ddp, AdamWOptions(0.1));
  toy_loss(ddp, 0, world().rank()).backward();
  fused.step();
  check_throws<Error>([&] { toy_loss(ddp, 1, world().rank()).backward(); }, "call zero_grad() in between");
}

TEST(FusedZero, WhatTheWrapperIgnoresStaysEachRanksOwn) {
  ONLY_IF(world().backend_name() == "lockstep");
  const std::vector<std::string> ignored{"net2.weight"};  // large enough to be divided
  Wide model, plain_model;
  for (const Wide& each : {model, plain_model}) each->net2->weight.detach().mul_(1 + world().rank());
  const at::Tensor own = model->net2->weight.detach().clone();
  DistributedDataParallel ddp(model, {.parameters_and_buffers_to_ignore = ignored});
  DistributedDataParallel reference(plain_model, {.parameters_and_buffers_to_ignore = ignored});
  FusedZeroRedundancyOptimizer<FusedSGD> fused(ddp, SGDOptions(0.1));
  FusedSGD plain({plain_model->net1->weight, plain_model->net1->bias, plain_model->net2->bias,
                  plain_model->net3->weight, plain_model->net3->bias},
                 SGDOptions(0.1));
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    plain_model->zero_grad();
    toy_loss(ddp, step, world().rank()).backward();
    toy_loss(reference, step, world().rank()).backward();
    fused.step();
    plain.step();
    check_equal(values_of(*model), values_of(*plain_model));
    CHECK_EQUAL(model->net2->weight, own);
  }
  const std::string why = "parameter net2.weight is in parameters_and_buffers_to_ignore";
  const torch::optim::OptimizerParamGroup all(model->parameters()), one({model->net2->weight});
  using Fused = FusedZeroRedundancyOptimizer<FusedSGD>;
  check_throws<ValueError>([&] { Fused(ddp, {all}, SGDOptions(0.1)); }, why);
  check_throws<ValueError>([&] { fused.add_param_group(one); }, why);
}

/// A slice of it would be some other elements.
TEST(FusedZero, AStateOfAnotherShapeIsRefused) {
  ONLY_IF(world().backend_name() == "lockstep");
  Wide model;
  DistributedDataParallel ddp(model);
  const auto options = SGDOptions(0.1).momentum(0.9);
  FusedZeroRedundancyOptimizer<FusedSGD> fused(ddp, options);
  std::vector<at::Tensor> others;
  for (const at::Tensor& parameter : model->parameters())
    others.push_back(parameter.detach().clone().requires_grad_());
  others[0] = at::ones({131, 10}).requires_grad_();
  FusedSGD plain(others, options);
  for (const at::Tensor& parameter : others) parameter.mutable_grad() = at::ones_like(parameter);
  plain.step();
  check_throws<ValueError>([&] { fused.load_state_dict(plain); },
                           "momentum_buffer of a parameter of shape [130, 10] has the shape [131, 10]");
}

/// Rank 0 trains a model alone, the other ranks another one together.
std::vector<std::vector<int>> first_and_others() {
  std::vector<std::vector<int>> groups{{0}, {}};
  for (int rank = 1; rank < world().size(); ++rank) groups[1].push_back(rank);
  return groups;
}

TEST(FusedZero, WorksInTheGroupOfTheWrapper) {
  ONLY_IF(world().backend_name() == "lockstep");
  const ProcessGroup group = world().split_group(first_and_others());
  const int data = world().rank() == 0 ? 0 : 50;
  for (const bool shared : {false, true}) {
    Wide model, plain_model;
    DistributedDataParallel ddp(model, {.process_group = group}),
        reference(plain_model, {.process_group = group});
    FusedZeroRedundancyOptimizer<FusedSGD> fused(ddp, SGDOptions(0.1), {.shared_parameters = shared});
    FusedSGD plain(plain_model->parameters(), SGDOptions(0.1));
    CHECK_TRUE(fused.process_group().size() == group.size());
    for (int step = 0; step < 3; ++step) {
      fused.zero_grad();
      plain.zero_grad();
      toy_loss(ddp, data + step, group.rank()).backward();
      toy_loss(reference, data + step, group.rank()).backward();
      CHECK_TRUE(fused.clip_grad_norm_(kClips) == clip_grad_norm_(plain_model->parameters(), kClips));
      fused.step();
      plain.step();
      check_equal(values_of(*model), values_of(*plain_model));
    }
    world().barrier();
  }
}

TEST(FusedZero, AGroupOfOtherRanksThanTheWrappersIsRefused) {
  ONLY_IF(world().backend_name() == "lockstep" && world().size() > 1);
  const ProcessGroup group = world().split_group(first_and_others());
  Wide model;
  DistributedDataParallel ddp(model, {.process_group = group});
  using Fused = FusedZeroRedundancyOptimizer<FusedSGD>;
  check_throws<ValueError>([&] { Fused(ddp, SGDOptions(0.1), {.process_group = world()}); },
                           "process_group has the ranks 0, 1");
  const Fused fused(ddp, SGDOptions(0.1), {.process_group = group.duplicate()});
  CHECK_TRUE(fused.process_group().global_ranks() == group.global_ranks());
}

/// Gradients are dropped or zeroed by the optimizer, through its base class, or by the module; before the
/// forward or after it.
TEST(FusedZero, AnyZeroGradWillDo) {
  ONLY_IF(world().backend_name() == "lockstep");
  const int own = world().rank();
  Wide model, plain;
  DistributedDataParallel ddp(model), reference(plain);
  FusedZeroRedundancyOptimizer<FusedSGD> fused(ddp, SGDOptions(0.1));
  FusedSGD optimizer(plain->parameters(), SGDOptions(0.1));
  torch::optim::Optimizer& base = fused;
  const auto zero = [&](int step) {
    if (step % 4 == 0) fused.zero_grad();
    if (step % 4 == 1) base.zero_grad(/*set_to_none=*/false);
    if (step % 4 == 2) model->zero_grad();
    if (step % 4 == 3) base.zero_grad();
  };
  for (int step = 0; step < 8; ++step) {
    plain->zero_grad();
    if (step % 2 == 0) zero(step);
    if (step % 2 == 0) {
      const auto guard = ddp.no_sync();
      toy_loss(ddp, step + 20, own).backward();
    }
    const at::Tensor loss = toy_loss(ddp, step, own);
    if (step % 2 != 0) zero(step);
    loss.backward();
    fused.step();
    if (step % 2 == 0) {
      const auto guard = reference.no_sync();
      toy_loss(reference, step + 20, own).backward();
    }
    toy_loss(reference, step, own).backward();
    optimizer.step();
    check_equal(values_of(*model), values_of(*plain));
  }
}

/// Afterwards each rank has parameters of its own again.
TEST(FusedZero, SharedParametersAfterTheOptimizer) {
  ONLY_IF(world().backend_name() == "lockstep");
  Wide model;
  {
    DistributedDataParallel ddp(model);
    FusedZeroRedundancyOptimizer<FusedSGD> fused(ddp, SGDOptions(0.1), {.shared_parameters = true});
    toy_loss(ddp, 0, world().rank()).backward();
    fused.step();
  }
  const at::Tensor before = model->net2->weight.detach().clone();
  world().barrier();
  const torch::NoGradGuard no_grad;
  if (world().rank() == 0) model->net2->weight.fill_(5);
  world().barrier();
  if (world().rank() != 0) CHECK_EQUAL(model->net2->weight, before);
}

TEST(FusedZero, TheFusedOneNeedsSharedMemory) {
  ONLY_IF(world().backend_name() == "gloo");
  Wide model;
  DistributedDataParallel ddp(model);
  check_throws<ValueError>([&] { FusedZeroRedundancyOptimizer<FusedAdamW>(ddp, AdamWOptions(0.1)); },
                           "ZeroRedundancyOptimizer works on any");
}

TEST(FusedZero, WhatTorchLoadBringsIsTrained) {
  ONLY_IF(world().backend_name() == "lockstep");
  Wide other;
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : other->parameters()) parameter.mul_(0.5);
  }
  std::ostringstream saved;
  torch::save(other, saved);
  const auto options = SGDOptions(0.1).momentum(0.9);
  DistributedDataParallel reference(other);
  FusedSGD plain(other->parameters(), options);
  Wide model;
  DistributedDataParallel ddp(model);
  FusedZeroRedundancyOptimizer<FusedSGD> fused(ddp, options);
  std::istringstream file(saved.str());
  torch::load(model, file);
  for (int step = 0; step < 3; ++step) {
    plain.zero_grad();
    toy_loss(reference, step, world().rank()).backward();
    plain.step();
    fused.zero_grad();
    toy_loss(ddp, step, world().rank()).backward();
    fused.step();
    check_equal(values_of(*model), values_of(*other));
  }
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    first = register_module("first", torch::nn::Linear(10, 10));
    again = register_parameter("again", first->weight);
    last = register_module("last", torch::nn::Linear(10, 5));
    const torch::NoGradGuard no_grad;
    double phase = 0;
    for (const at::Tensor& p : {first->weight, first->bias, last->weight, last->bias})
      p.copy_(wave(p.sizes(), ++phase));
  }
  at::Tensor forward(const at::Tensor& x) { return last(at::linear(first(x).relu(), again)); }
  torch::nn::Linear first{nullptr}, last{nullptr};
  at::Tensor again;
};
TORCH_MODULE(Tied);

TEST(FusedZero, TiedWeightsAreOneParameter) {
  ONLY_IF(world().backend_name() == "lockstep");
  Tied model, plain_model;
  DistributedDataParallel ddp(model), reference(plain_model);
  FusedZeroRedundancyOptimizer<FusedAdamW> fused(ddp, AdamWOptions(0.05));
  FusedAdamW plain({plain_model->first->weight, plain_model->first->bias, plain_model->last->weight,
                    plain_model->last->bias},
                   AdamWOptions(0.05));
  for (int step = 0; step < 3; ++step) {
    fused.zero_grad();
    plain.zero_grad();
    toy_loss(ddp, step, world().rank()).backward();
    toy_loss(reference, step, world().rank()).backward();
    CHECK_TRUE(fused.clip_grad_norm_(kClips) == clip_grad_norm_(plain_model->parameters(), kClips));
    fused.step();
    plain.step();
    check_equal(values_of(*model), values_of(*plain_model));
  }
  check_throws<ValueError>(
      [&] { fused.add_param_group(torch::optim::OptimizerParamGroup({model->last->bias})); },
      "some parameters appear in more than one parameter group: parameter 0 of group 1 (Float [5])");
  ZeroRedundancyOptimizer<FusedAdamW> zero(plain_model->parameters(), AdamWOptions(0.05));
  toy_loss(reference, 9, world().rank()).backward();
  zero.step();
  zero.consolidate_state_dict();
}

TEST(FusedZero, GradientsAreAveragedInFullAfterTheOptimizer) {
  ONLY_IF(world().backend_name() == "lockstep");
  for (const bool shared : {false, true}) {
    Wide model, alone;
    DistributedDataParallel ddp(model);
    {
      FusedZeroRedundancyOptimizer<FusedSGD> fused(ddp, SGDOptions(0.1), {.shared_parameters = shared});
      toy_loss(ddp, 0, world().rank()).backward();
      fused.step();
      fused.zero_grad();
    }
    for (size_t p = 0; p < model->parameters().size(); ++p)
      alone->parameters()[p].detach().copy_(model->parameters()[p]);
    const auto expected = average_gradients(*alone, [&](int rank) { return toy_loss(alone, 1, rank); });
    toy_loss(ddp, 1, world().rank()).backward();
    check_gradients(*model, expected);
  }
}

}  // namespace
}  // namespace lockstep::testing
