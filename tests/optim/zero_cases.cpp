#include "tests/optim/zero_cases.h"

#include <ATen/ops/equal.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>

#include <array>
#include <cmath>
#include <memory>

#include "lockstep/optim/adamw.h"
#include "lockstep/optim/fused_zero_optimizer.h"
#include "lockstep/optim/lr_scheduler.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/optim/zero_redundancy_optimizer.h"

namespace lockstep::testing {
namespace {

TEST(Zero, WrongUseIsNamed) {
  using torch::optim::AdamWOptions;
  using Zero = ZeroRedundancyOptimizer<FusedAdamW>;
  check_throws<ValueError>([] { Zero(std::vector<at::Tensor>(), AdamWOptions(0.1)); },
                           "got an empty parameter list");
  const Toy toy;
  Zero optimizer(toy->parameters(), AdamWOptions(0.1));
  check_throws<Error>([&] { optimizer.state_dict(); }, "call consolidate_state_dict(");
  const FusedAdamW fewer({toy->net1->weight}, AdamWOptions(0.1));
  check_throws<ValueError>([&] { optimizer.load_state_dict(fewer); }, "has 1 parameters, this optimizer's 4");
  const FusedSGD other(toy->parameters(), torch::optim::SGDOptions(0.5));
  check_throws<ValueError>([&] { optimizer.load_state_dict(other); }, "another class of optimizer");
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.1);
  optimizer.consolidate_state_dict(0);
  const torch::nn::Linear more(2, 2);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(more->parameters()));
  check_throws<Error>([&] { optimizer.state_dict(); }, "has not been consolidated");
}

// Under DistributedDataParallel: what the plain optimizer makes of the same gradients, to the bit, and less
// state.
TEST(Zero, EqualsThePlainOptimizer) {
  const auto train = [](Toy& toy, torch::optim::Optimizer& optimizer) {
    DistributedDataParallel ddp(toy);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      toy_loss(ddp, step, world().rank()).backward();
      optimizer.step();
    }
  };
  Toy plain_model;
  FusedSGD plain(plain_model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  train(plain_model, plain);
  for (const bool view : {false, true}) {
    Toy model;
    ZeroRedundancyOptimizer<FusedSGD> zero(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9),
                                           {.parameters_as_bucket_view = view});
    train(model, zero);
    for (size_t p = 0; p < model->parameters().size(); ++p) {
      CHECK_EQUAL(model->parameters()[p], plain_model->parameters()[p]);
    }
    size_t owned = 0;
    for (const auto& group : zero.partition_parameters()[static_cast<size_t>(world().rank())]) {
      owned += group.size();
    }
    CHECK_TRUE(owned < plain_model->parameters().size());
  }
}

// By group. None is the default of a class, which LibTorch would replace by the optimizer's own.
constexpr std::array<double, 2> kRates{0.1, 0.02};

template <class Options>
std::vector<torch::optim::OptimizerParamGroup> two_groups(const Toy& model) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(model->net1->parameters(), std::make_unique<Options>(kRates[0]));
  groups.emplace_back(model->net2->parameters(), std::make_unique<Options>(kRates[1]));
  return groups;
}

/// The rates of both groups fall to 0 in two steps, and a step of rate 0 leaves all weights alone.
template <class Make>
void follows_a_schedule(const Make& make) {
  Toy model;
  DistributedDataParallel ddp(model);
  const auto optimizer = make(model, ddp);
  LRScheduler scheduler(*optimizer, {.type = SchedulerType::linear, .num_training_steps = 2});
  for (int step = 0; step < 3; ++step) {
    std::vector<at::Tensor> before;
    for (size_t g = 0; g < kRates.size(); ++g) {
      const double rate = optimizer->param_groups()[g].options().get_lr();
      CHECK_TRUE(std::abs(rate - kRates[g] * (2 - step) / 2) < 1e-12);
    }
    for (const at::Tensor& parameter : model->parameters()) before.push_back(parameter.detach().clone());
    optimizer->zero_grad();
    toy_loss(ddp, step, world().rank()).backward();
    optimizer->step();
    scheduler.step();
    for (size_t p = 0; p < before.size(); ++p) {
      CHECK_TRUE(at::equal(model->parameters()[p], before[p]) == (step == 2));
    }
  }
}

template <class Optimizer, class Options>
void follow_a_schedule() {
  follows_a_schedule([](Toy& model, auto& /*ddp*/) {
    return std::make_unique<Optimizer>(two_groups<Options>(model), Options(0.5));
  });
  follows_a_schedule([](Toy& model, auto& /*ddp*/) {
    return std::make_unique<ZeroRedundancyOptimizer<Optimizer>>(two_groups<Options>(model), Options(0.5));
  });
  if (world().backend_name() != "lockstep") return;
  for (const bool shared : {false, true}) {
    follows_a_schedule([&](Toy& model, auto& ddp) {
      return std::make_unique<FusedZeroRedundancyOptimizer<Optimizer>>(
          ddp, two_groups<Options>(model), Options(0.5),
          FusedZeroRedundancyOptimizerOptions{.shared_parameters = shared});
    });
  }
}

TEST(Zero, EveryOptimizerFollowsASchedule) {
  using namespace torch::optim;
  follow_a_schedule<FusedAdamW, AdamWOptions>();
  follow_a_schedule<FusedSGD, SGDOptions>();
  follow_a_schedule<AdamW, AdamWOptions>();
  follow_a_schedule<Adam, AdamOptions>();
  follow_a_schedule<SGD, SGDOptions>();
  follow_a_schedule<Adagrad, AdagradOptions>();
  follow_a_schedule<RMSprop, RMSpropOptions>();
}

}  // namespace
}  // namespace lockstep::testing
