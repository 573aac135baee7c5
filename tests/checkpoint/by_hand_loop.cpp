// A training loop as docs/checkpoints.md shows it, which killed_loop_test.py kills and starts again.
// Usage: by_hand_loop FOLDER STEPS
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "lockstep/base/main.h"
#include "lockstep/checkpoint/parts.h"
#include "lockstep/comm/init.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/sampler.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/fused_zero_optimizer.h"
#include "lockstep/optim/lr_scheduler.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/state/counters.h"
#include "lockstep/state/random_state.h"

namespace {

using namespace lockstep;

// One write a line: the ranks share the pipe, and the test kills by what it reads.
void tell(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

int train(const std::filesystem::path& folder, int64_t steps) {
  const World world = init();
  at::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(6, 300), torch::nn::Dropout(0.5), torch::nn::Linear(300, 1));
  const at::Tensor inputs = at::rand({50, 6}), targets = at::rand({50, 1});
  const Dataset dataset = tensor_dataset({{"inputs", inputs}, {"targets", targets}});
  DistributedDataParallel ddp(model);
  FusedZeroRedundancyOptimizer<FusedAdamW> optimizer(ddp, torch::optim::AdamWOptions(0.01));
  LRScheduler scheduler(optimizer, {.type = SchedulerType::linear, .num_training_steps = steps});
  DistributedSampler sampler(dataset);
  Counters counters;
  RandomState random;
  at::manual_seed(world.rank());
  const std::vector<checkpoint::Part> parts{{"model", model},
                                            {"ddp", ddp},
                                            {"optimizer", optimizer},
                                            {"scheduler", scheduler},
                                            {"sampler", sampler},
                                            {"counters", counters},
                                            {"random", random, checkpoint::SavedBy::each_rank}};
  if (const auto last = checkpoint::latest(folder)) checkpoint::load(*last, parts);

  int64_t& step = counters["step"];
  for (int64_t& epoch = counters["epoch"]; step < steps; ++epoch) {
    sampler.set_epoch(epoch);
    DataLoader loader(dataset, sampler.indices(), {.batch_size = 5});
    while (step < steps) {
      const auto batch = loader.next();
      if (!batch) break;
      optimizer.zero_grad();
      at::mse_loss(ddp((*batch)["inputs"]), (*batch)["targets"]).backward();
      optimizer.step();
      scheduler.step();
      sampler.advance(batch->size());
      ++step;
      tell(fmt::format("step {} epoch {} rank {} pid {} used {}", step, epoch, world.rank(), ::getpid(),
                       fmt::join(loader.samples(), ",")));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // who kills us at a line is not much later
      if (step % 2 == 0) {
        if (world.rank() == 0) tell(fmt::format("saving {}", step));
        checkpoint::save(folder / fmt::format("checkpoint-{}", step), parts, {.save_total_limit = 2});
      }
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("by_hand_loop", [&] { return train(argv[1], std::atoi(argv[argc - 1])); });
}
