// Calls of every kind leave neither mappings nor memory behind.
#include <ATen/ops/empty.h>

#include <fstream>

#include "lockstep/base/error.h"
#include "tests/comm/numbers.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using lockstep::testing::of;
using lockstep::testing::world;

namespace {

struct Usage {
  int64_t mappings = 0, pss_kb = 0;
};

Usage usage() {
  Usage result;
  std::ifstream maps("/proc/self/maps"), rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(maps, line);) ++result.mappings;
  for (std::string line; std::getline(rollup, line);) {
    // Not of files: a library's pages count for more as soon as another process that has mapped it ends.
    for (const std::string part : {"Pss_Anon:", "Pss_Shmem:"}) {
      if (line.starts_with(part)) result.pss_kb += std::stoll(line.substr(part.size()));
    }
  }
  return result;
}

void call_everything(const World& world, int times) {
  const int size = world.size(), self = world.rank();
  std::vector<int> everyone;
  std::vector<at::Tensor> lists;
  for (int r = 0; r < size; ++r) {
    everyone.push_back(r);
    lists.push_back(at::empty({3000}));
  }
  const at::Tensor small = of(self, 16), large = of(self, 60000), row = of(self, 3000);
  for (int n = 0; n < times; ++n) {
    world.all_reduce(small, {.op = ReduceOp::MAX});
    if (n % 50 == 0) {
      world.all_reduce(large, {.op = ReduceOp::MAX});
      world.all_gather_async(lists, row)->wait();
      world.empty_shared({30000}, at::kFloat).fill_(1);
      const auto send = world.isend(row, (self + 1) % size, {.tag = 1});
      world.recv(lists[0], (self + size - 1) % size, {.tag = 1});
      send->wait();
      world.all_gather_bytes("some bytes");
    }
    if (n % 500 == 0) world.new_group(everyone).barrier();
  }
  world.barrier();
}

TEST(Memory, DoesNotGrowWithCalls) {
  ONLY_IF(world().size() == 2 && world().backend_name() == "lockstep");
  constexpr int kRounds = 10;
  // A call between machines takes many times as long.
  const int calls = world().local_world_size() == world().size() ? 20000 : 3000;
  // A rank may meet a page for the first time at any moment: when depends on how the ranks are scheduled. A
  // leak grows in every round: were a single byte kept of each call, by 20 KiB (3 KiB
  // between machines); of each large one, by a page.
  call_everything(world(), calls);
  const Usage first = usage();
  Usage before = first;
  for (int round = 0; round < kRounds; ++round) {
    call_everything(world(), calls);
    const Usage after = usage();
    const at::Tensor grew = at::empty({1}, at::kInt);
    grew.fill_(after.mappings > before.mappings || after.pss_kb > before.pss_kb + 8 ? 1 : 0);
    world().all_reduce(grew, {.op = ReduceOp::MAX});
    if (grew.item<int>() == 0) return;
    before = after;
  }
  throw Error("grew in each of " + std::to_string(kRounds) + " rounds, from " +
              std::to_string(first.mappings) + " mappings and " + std::to_string(first.pss_kb) + " KiB to " +
              std::to_string(before.mappings) + " and " + std::to_string(before.pss_kb));
}

}  // namespace
