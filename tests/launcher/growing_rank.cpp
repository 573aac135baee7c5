// A C++ rank that trains with what only the backend lockstep has, whatever the number of machines: it says how many ranks there
// are after each start, and ends when there is a file `release` in its directory.
#include <ATen/ops/ones.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/main.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/fused_zero_optimizer.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"

int main() {
  using namespace lockstep;
  return run_main("growing_rank", [] {
    const World world = init({.timeout = std::chrono::seconds(60)});
    torch::nn::Linear model(100, 100);
    DistributedDataParallel ddp(model);
    FusedZeroRedundancyOptimizer<FusedAdamW> optimizer(
        ddp, std::vector{torch::optim::OptimizerParamGroup(model->parameters())},
        torch::optim::AdamWOptions(0.1), {.shared_parameters = true});
    bool is_over = false;
    for (int step = 0; !is_over; ++step) {
      optimizer.zero_grad();
      ddp(at::ones({2, 100}) * (world.rank() + 1)).sum().backward();
      optimizer.step();
      if (step == 0) {
        std::printf("rank %d of %d on %s\n", world.rank(), world.size(), world.backend_name().c_str());
        std::fflush(stdout);
        std::ofstream("up" + std::to_string(world.rank()) + "." + std::to_string(world.size()));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      is_over = world.broadcast_bytes(std::filesystem::exists("release") ? "over" : "", {.src = 0}) == "over";
    }
    return 0;
  });
}
