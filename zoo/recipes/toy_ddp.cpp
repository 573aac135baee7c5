// The smallest training with DistributedDataParallel: PyTorch's tutorial model, ten steps.
//
//   toy_ddp [RANKS]                                     starts its own ranks (default 2)
//   lockrun --standalone --nproc-per-node 2 toy_ddp     or runs as the ranks of any launcher
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/spawn.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/parallel/parameters.h"
#include "lockstep/zoo/models/toy.h"

namespace {

void train(int /*rank*/, const nlohmann::json& /*arguments*/) {
  const lockstep::World world = lockstep::init();
  at::manual_seed(world.rank());  // every rank has other data; the model is rank 0's
  lockstep::models::ToyModel model;
  lockstep::DistributedDataParallel ddp(model);
  lockstep::FusedSGD optimizer(lockstep::parameters(model), 0.1);
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

struct Options {
  std::optional<size_t> ranks;
};

constexpr auto kFlags = std::to_array<lockstep::Flag<Options>>({
    {.name = "RANKS",
     .member = &Options::ranks,
     .default_words = "2",
     .check = lockstep::FlagCheck::between(1, 256),
     .words = "Ranks to start; not under a launcher",
     .is_place = true},
});

int run(int argc, char** argv) {
  Options options;
  const auto add_flags = [&](lockstep::CommandLine program) {
    program.add_example("Start two ranks itself", "toy_ddp 2");
    program.add_example("Be the ranks that a launcher starts", "lockrun --nproc-per-node 2 toy_ddp");
    program.add_table<Options>(kFlags, options);
  };
  if (!lockstep::parse_command_line(
          "toy_ddp", "Trains PyTorch's tutorial model for ten steps with DistributedDataParallel", add_flags,
          argc, argv)) {
    return 0;
  }
  if (!lockstep::is_launched()) {
    lockstep::spawn(kTrain, static_cast<int>(options.ranks.value_or(2)));
    return 0;
  }
  if (options.ranks) {
    // Each rank of the launcher's would start RANKS more.
    lockstep::on_all_ranks(lockstep::init(), [&] {
      throw lockstep::ValueError(
          fmt::format("this process is already one of the ranks that a launcher (lockrun, torchrun, mpirun, "
                      "srun) started; it would start {} more of its own, and so would each of the others. "
                      "Leave RANKS out here, or start toy_ddp without a launcher",
                      *options.ranks));
    });
  }
  train(0, {});  // the rank is init()'s to find out
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::skip_library_destructors();
  return lockstep::run_main("toy_ddp", [&] { return run(argc, argv); });
}
