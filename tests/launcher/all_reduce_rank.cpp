// A C++ rank: an all-reduce over LOCKSTEP_BACKEND, for which rank 1 waits until `late` is gone from its
// directory. Then it waits for `release` there.
#include <ATen/ops/full.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include "lockstep/base/main.h"
#include "lockstep/comm/init.h"

int main() {
  return lockstep::run_main("all_reduce_rank", [] {
    auto world = lockstep::init({.timeout = std::chrono::seconds(60)});
    for (int i = 0; i < 3000 && world.rank() == 1 && std::filesystem::exists("late"); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const auto tensor = at::full({1000}, world.rank() + 1.0);
    world.all_reduce(tensor);
    std::printf("rank %d of %d sum %g\n", world.rank(), world.size(), tensor[999].item<double>());
    std::fflush(stdout);
    for (int i = 0; i < 3000 && !std::filesystem::exists("release"); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return 0;
  });
}
