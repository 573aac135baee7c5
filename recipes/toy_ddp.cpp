// The smallest training with DistributedDataParallel: PyTorch's tutorial model, ten steps.
//
//   toy_ddp [RANKS]                                     starts its own ranks (default 2)
//   lockrun --standalone --nproc-per-node 2 toy_ddp     or runs as the ranks of any launcher
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/spawn.h"
#include "lockstep/models/toy.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/distributed_data_parallel.h"

namespace {

void train(int /*rank*/, const nlohmann::json& /*arguments*/) {
  const lockstep::World world = lockstep::init();
  at::manual_seed(world.rank());  // every rank has other data; the model is rank 0's
  lockstep::models::ToyModel model;
  lockstep::DistributedDataParallel ddp(model);
  lockstep::FusedSGD optimizer(model->parameters(), 0.1);
  const at::Tensor input = at::randn({20, 10}), target = at::randn({20, 5});
  for (int step = 1; step <= 10; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = at::mse_loss(ddp(input), target);
    loss.backward();  // gradients are averaged while backward runs
    optimizer.step();
    const at::Tensor mean = loss.detach();
    world.all_reduce(mean, {.op = lockstep::ReduceOp::AVG});
    if (world.rank() == 0) std::printf("step %2d  loss %.6f\n", step, mean.item<double>());
  }
  // Every rank made the same steps with the same averages: the models are the same to the bit.
  const std::vector<at::Tensor> all = world.all_gather(model->named_parameters()["net1.weight"].detach());
  for (const at::Tensor& theirs : all) {
    if (!theirs.equal(all[0])) throw lockstep::Error("the ranks' models differ");
  }
  if (world.rank() == 0) std::printf("%d ranks, one model\n", world.size());
}
const lockstep::Spawnable kTrain("train", train);

int ranks_from(const char* text) {
  int ranks = 0;
  const char* const end = text + std::strlen(text);
  if (std::from_chars(text, end, ranks).ptr != end || ranks < 1 || ranks > 256) {
    throw lockstep::ValueError(std::string("RANKS must be a number from 1 to 256, not \"") + text + "\"");
  }
  return ranks;
}

/// A program that starts its own ranks, started as ranks by a launcher: each of those would start RANKS more,
/// and all of them would meet at one address, as one job after another with the same rank numbers.
int run(int argc, char** argv) {
  if (argc > 2) throw lockstep::ValueError("usage: toy_ddp [RANKS]");
  if (!lockstep::is_launched()) {
    lockstep::spawn(kTrain, argc == 2 ? ranks_from(argv[1]) : 2);
    return 0;
  }
  if (argc == 2) {
    throw lockstep::ValueError(
        std::string("this process is already one of the ranks that a launcher (lockrun, ") +
        "torchrun, mpirun, srun) started; it would start " + argv[1] +
        " more of its own, and so would each of the others. Leave RANKS out here, or "
        "start toy_ddp without a launcher");
  }
  train(0, {});  // the rank is init()'s to find out
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("toy_ddp", [&] { return run(argc, argv); });
}
