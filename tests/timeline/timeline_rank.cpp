// A rank that trains for some steps: timeline_rank STEPS [KILLED_RANK]
// KILLED_RANK ends by SIGKILL after half of its steps.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>

#include <csignal>

#include "lockstep/base/main.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/timeline/timeline.h"
#include "lockstep/zoo/models/toy.h"

namespace {

int run(int argc, char** argv) {
  const int steps = std::stoi(argv[1]);
  const int killed = argc > 2 ? std::stoi(argv[2]) : -1;
  const lockstep::World world = lockstep::init({.timeout = std::chrono::seconds(60)});
  lockstep::models::ToyModel model;
  lockstep::DistributedDataParallel ddp(model, {.bucket_cap_mb = 1e-6});  // a bucket per parameter
  lockstep::FusedSGD optimizer(model->parameters(), 0.01);
  const at::Tensor input = at::randn({20, 10}), target = at::randn({20, 5});
  for (int step = 0; step < steps; ++step) {
    if (world.rank() == killed && step == steps / 2) std::raise(SIGKILL);
    { const lockstep::timeline::Span span("augment \"x\""); }
    optimizer.zero_grad();
    at::mse_loss(ddp(input), target).backward();
    optimizer.step();
  }
  world.barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("timeline_rank", [&] { return run(argc, argv); });
}
