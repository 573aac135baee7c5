// A job that loses a rank: ddp_test.cpp looks at how it ends.
#include <torch/optim/sgd.h>

#include <csignal>

#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

TEST(Dying, OneRankInTraining) {
  const World& world = testing::world();
  Toy model;
  DistributedDataParallel ddp(model);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < 1000000; ++step) {
    if (step == 50 && world.rank() == 1) ::raise(SIGKILL);
    optimizer.zero_grad();
    at::mse_loss(ddp(batch_input(step % 10, world.rank())), batch_target(step % 10, world.rank())).backward();
    optimizer.step();
  }
}

}  // namespace
}  // namespace lockstep::testing
