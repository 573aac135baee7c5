// Ranks on machines of unequal size: who is where, and what is made from that.
#include <ATen/ops/full.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/joining/machines.h"
#include "lockstep/comm/parts.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using lockstep::testing::check_throws;

namespace {

/// Ranks by machine, as this rank's launcher could have told it.
std::vector<std::string> own_machines(const World& world) {
  return world.all_gather_bytes(std::to_string(world.group_rank()));
}

TEST(Machines, AreThoseOfTheLauncher) {
  const World world = lockstep::testing::world();
  const auto told = own_machines(world);
  const auto machines = ranks_by_machine(world.size());
  for (size_t i = 0; i < machines.size(); ++i) {
    for (const int rank : machines[i]) CHECK_TRUE(told[static_cast<size_t>(rank)] == std::to_string(i));
  }
  CHECK_TRUE(machines[static_cast<size_t>(world.group_rank())].size() ==
             static_cast<size_t>(world.local_world_size()));
  std::printf("rank %d: machine %d of %zu\n", world.rank(), world.group_rank(), machines.size());
}

TEST(Machines, AHierarchicalSumIsRight) {
  const World world = lockstep::testing::world();
  for (const int64_t count : {int64_t{1}, int64_t{1000}, int64_t{300000}}) {
    const auto tensor = at::full({count}, world.rank() + 1, at::kInt);
    world.all_reduce(tensor, {.algorithm = AllReduceAlgorithm::HIERARCHICAL});
    CHECK_EACH(tensor, world.size() * (world.size() + 1) / 2);
  }
}

TEST(Machines, AHierarchicalSumOfSomeRanksIsRight) {
  const World world = lockstep::testing::world();
  ONLY_IF(world.size() > 2);
  std::vector<int> some;
  for (int r = 1; r < world.size(); ++r) some.push_back(r);
  const ProcessGroup group = world.new_group(some);
  if (!group.is_member()) return;
  const auto tensor = at::full({1000}, world.rank(), at::kInt);
  group.all_reduce(tensor, {.algorithm = AllReduceAlgorithm::HIERARCHICAL});
  CHECK_EACH(tensor, world.size() * (world.size() - 1) / 2);
}

TEST(Machines, GroupsOfTheRanksOfAMachine) {
  const World world = lockstep::testing::world();
  const ProcessGroup own = world.split_group(ranks_by_machine(world.size()));
  CHECK_TRUE(own.size() == world.local_world_size());
  const auto tensor = at::full({10}, 1, at::kInt);
  own.all_reduce(tensor);
  CHECK_TRUE(tensor[0].item<int>() == world.local_world_size());
}

TEST(Machines, SubgroupsOfUnequalSizesAreOneErrorOnAll) {
  const World world = lockstep::testing::world();
  const auto sizes = world.all_gather_bytes(std::to_string(world.local_world_size()));
  ONLY_IF(sizes.front() != sizes.back());
  check_throws<ValueError>(
      [&] { world.new_subgroups(world.local_world_size()); },
      "new_subgroups: every rank must give the same size, but rank 0 gave " + sizes.front());
  world.barrier();
}

/// LibTorch's barrier counts its tags from 0, on the engine that carries messages between machines.
TEST(Machines, AMonitoredBarrierMeetsNoMessageThatIsUnderWay) {
  const World world = lockstep::testing::world();
  ONLY_IF(world.backend_name() == "lockstep" && world.size() > 1);
  const int last = world.size() - 1;
  // The first bytes of a message come in its header, the others apart.
  for (const int64_t count : {1, 1018, 5000}) {
    std::vector<std::shared_ptr<Work>> sent;
    for (int tag = 0; world.rank() == last && tag < 4; ++tag)
      sent.push_back(world.isend(at::full({count}, tag + 1, at::kInt), 0, {.tag = tag}));
    for (int i = 0; i < 3; ++i) world.monitored_barrier();
    for (int tag = 0; world.rank() == 0 && tag < 4; ++tag) {
      const auto received = at::full({count}, -1, at::kInt);
      world.recv(received, last, {.tag = tag});
      CHECK_EACH(received, tag + 1);
    }
    for (const auto& work : sent) work->wait();
    world.barrier();
  }
}

/// The first receive from rank 1 waits behind one from any rank, which then takes another machine's message.
TEST(Machines, ReceivesFromOneRankTakeItsMessagesInOrder) {
  const World world = lockstep::testing::world();
  ONLY_IF(world.backend_name() == "lockstep" && world.size() > 2);
  const int last = world.size() - 1;
  constexpr int kGo = 7;
  for (const bool is_blocking : {false, true}) {
    const at::Tensor go = at::full({1}, 0, at::kInt);
    if (world.rank() == last) world.send(at::full({1}, 100, at::kInt), 0);
    if (world.rank() == 1) {
      world.recv(go, 0, {.tag = kGo});
      for (const int value : {1, 2}) world.send(at::full({1}, value, at::kInt), 0);
    }
    if (world.rank() == 0) {
      const at::Tensor from_any = at::full({1}, -1, at::kInt);
      const at::Tensor first = from_any.clone(), second = from_any.clone();
      const auto any = world.irecv(from_any), first_of_two = world.irecv(first, 1);
      any->wait();
      CHECK_TRUE(any->source_rank() == last);
      if (is_blocking) {
        const auto sent = world.isend(go, 1, {.tag = kGo});
        world.recv(second, 1);
        sent->wait();
      } else {
        const auto second_of_two = world.irecv(second, 1);
        world.send(go, 1, {.tag = kGo});
        second_of_two->wait();
      }
      first_of_two->wait();
      CHECK_EACH(from_any, 100);
      CHECK_EACH(first, 1);
      CHECK_EACH(second, 2);
    }
    world.barrier();
  }
}

/// Also the first one of a group, whose receiver has not called anything for messages.
TEST(Machines, ASmallSendDoesNotWaitForItsReceiver) {
  const World world = lockstep::testing::world();
  ONLY_IF(world.backend_name() == "lockstep" && world.size() > 1);
  const int last = world.size() - 1;
  std::vector<int> everyone(static_cast<size_t>(world.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  for (const int64_t count : {1, 1018}) {
    const ProcessGroup group = world.new_group(everyone, {.timeout = std::chrono::seconds(30)});
    if (world.rank() == 0) group.send(at::full({count}, 5, at::kInt), last);
    group.barrier();
    if (world.rank() == last) {
      const at::Tensor received = at::full({count}, -1, at::kInt);
      group.recv(received, 0);
      CHECK_EACH(received, 5);
    }
    group.barrier();
  }
}

TEST(Machines, MemoryInCommonIsMadeAfterWhatWasStartedBefore) {
  const World world = lockstep::testing::world();
  ONLY_IF(world.backend_name() == "lockstep");
  std::vector<at::Tensor> sums;
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 5; ++i) {
    sums.push_back(at::full({200000}, (world.rank() + 1) * (i + 1), at::kInt));
    works.push_back(world.all_reduce_async(sums.back()));
  }
  const at::Tensor common = lockstep::detail::empty_common(world, {1000}, at::kLong);
  CHECK_TRUE(common.numel() == 1000);
  for (size_t i = 0; i < works.size(); ++i) {
    works[i]->wait();
    CHECK_EACH(sums[i], world.size() * (world.size() + 1) / 2 * static_cast<int>(i + 1));
  }
}

// It holds nobody up: what it gave is in shared memory, and it computes.
TEST(Machines, ARankThatHasStartedASmallOneMayCompute) {
  const World world = lockstep::testing::world();
  ONLY_IF(world.backend_name() == "lockstep");
  const std::string name = world.all_gather_bytes("lockstep-sum-" + std::to_string(::getpid())).front();
  // They tell each other outside of the group, where no call of theirs advances it.
  const auto file_of = [&](int rank) {
    return std::filesystem::temp_directory_path() / (name + "-" + std::to_string(rank));
  };
  const auto await = [&](int rank) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(50);
    while (!std::filesystem::exists(file_of(rank))) {
      CHECK(std::chrono::steady_clock::now() < deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  const at::Tensor small = at::full({1000}, world.rank() + 1, at::kInt);
  const std::vector<std::vector<int>> machines = ranks_by_machine(world.size());
  if (world.local_rank() == 0) {
    for (const int rank : machines[static_cast<size_t>(world.group_rank())]) {
      if (rank != world.rank()) await(rank);
    }
    world.all_reduce(small, {.timeout = std::chrono::seconds(60)});
    std::ofstream(file_of(world.rank())) << "ended";
  } else {
    const auto work = world.all_reduce_async(small);
    std::ofstream(file_of(world.rank())) << "started";
    for (const auto& ranks : machines) await(ranks.front());
    work->wait();
  }
  CHECK_EQUAL(small, at::full({1000}, world.size() * (world.size() + 1) / 2, at::kInt));
  world.barrier();
  std::filesystem::remove(file_of(world.rank()));
}

}  // namespace
