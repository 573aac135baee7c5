#include "tests/optim/zero_cases.h"

#include <ATen/ops/equal.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/optim/adamw.h"
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
      CHECK_TRUE(at::equal(model->parameters()[p], plain_model->parameters()[p]));
    }
    size_t owned = 0;
    for (const auto& group : zero.partition_parameters()[static_cast<size_t>(world().rank())]) {
      owned += group.size();
    }
    CHECK_TRUE(owned < plain_model->parameters().size());
  }
}

}  // namespace
}  // namespace lockstep::testing
