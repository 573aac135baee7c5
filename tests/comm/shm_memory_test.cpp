// How much memory the collectives take, and that buffers inside and outside the segment go together.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/comm/shm_rank.h"

namespace lockstep::shm {
namespace {

using testing::expect_all_succeed;
using testing::run_processes;

float number(int rank, size_t i) { return static_cast<float>((static_cast<size_t>(rank) + 3) * (i % 1000)); }

float sum_of(int ranks, size_t i) {
  float sum = 0;  // whole numbers below 2^24: exact in any order
  for (int r = 0; r < ranks; ++r) sum += number(r, i);
  return sum;
}

void fill(float* data, size_t count, int rank) {
  for (size_t i = 0; i < count; ++i) data[i] = number(rank, i);
}

class ShmMemoryTest : public ::testing::TestWithParam<int> {};

TEST_P(ShmMemoryTest, BuffersInsideAndOutsideTheSegmentMix) {
  const UniqueFd fd = create_segment(GetParam(), kArenaBytes);
  expect_all_succeed(run_processes(GetParam(), [&](int rank) {
    Rank self(fd.get(), rank);
    const int ranks = self.group.size();
    for (const size_t count : {10, 700, 3000, 50000, 300007}) {
      std::vector<float> outside(count);
      float* const inside = self.allocate<float>(count);
      for (int who = 0; who < 3; ++who) {
        float* const data = (rank + who) % 3 == 0 ? inside : outside.data();
        fill(data, count, rank);
        self.group.wait(self.group.start_all_reduce(data, count, DType::float32, ReduceOp::SUM), kTimeout);
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], sum_of(ranks, i)) << i << " of " << count;
        const int root = who % ranks;
        fill(data, count, rank);
        reduce(self.group, data, count, DType::float32, ReduceOp::SUM, root, kTimeout);
        for (size_t i = 0; i < count && rank == root; ++i) ASSERT_EQ(data[i], sum_of(ranks, i)) << i;
        fill(data, count, rank);
        broadcast(self.group, data, count, DType::float32, root, kTimeout);
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], number(root, i)) << i;
      }
      self.node.arena().release(reinterpret_cast<std::byte*>(inside));
    }
    EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
  }));
}

TEST_P(ShmMemoryTest, LargeMessagesNeedLittleOfTheArena) {
  const UniqueFd fd = create_segment(GetParam(), kHugePage);
  expect_all_succeed(run_processes(GetParam(), [&](int rank) {
    Rank self(fd.get(), rank);
    const auto ranks = static_cast<size_t>(self.group.size());
    const size_t count = 600000 * ranks;  // 2.4 MB a rank and more: no arena holds it
    std::vector<float> data(count), output(count / ranks);
    fill(data.data(), count, rank);
    reduce_scatter(self.group, data.data(), output.data(), count / ranks, DType::float32, ReduceOp::SUM,
                   kTimeout);
    const size_t first = static_cast<size_t>(rank) * output.size();
    for (size_t i = 0; i < output.size(); ++i) {
      ASSERT_EQ(output[i], sum_of(self.group.size(), first + i)) << i;
    }
    // all_gather of everybody's first part.
    std::vector<float> gathered(count);
    std::vector<Group::Copy> copies;
    for (size_t r = 0; r < ranks; ++r) {
      copies.push_back({static_cast<int>(r), 0, gathered.data() + r * output.size(), output.size() * 4});
    }
    self.group.exchange({.kind = OpKind::all_gather,
                         .dtype = DType::float32,
                         .count = output.size(),
                         .sent = data.data(),
                         .sent_bytes = output.size() * 4,
                         .copies = copies.data(),
                         .copy_count = copies.size()},
                        kTimeout);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(gathered[i], number(static_cast<int>(i / output.size()), i % output.size())) << i;
    }
    // Two at a time.
    const auto half = count / 2;
    const auto a = self.group.start_all_reduce(data.data(), half, DType::float32, ReduceOp::SUM);
    const auto b =
        self.group.start_all_reduce(data.data() + half, count - half, DType::float32, ReduceOp::SUM);
    self.group.wait(b, kTimeout);
    self.group.wait(a, kTimeout);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], sum_of(self.group.size(), i)) << i;
  }));
}

TEST_P(ShmMemoryTest, WhatFindsNoRoomInTheArenaWaitsForWhatWasStartedBefore) {
  const UniqueFd fd = create_segment(GetParam(), kHugePage);
  expect_all_succeed(run_processes(GetParam(), [&](int rank) {
    Rank self(fd.get(), rank);
    const int ranks = self.group.size();
    constexpr size_t kCount = 150001;
    constexpr size_t kOperations = 11;  // of which each holds a quarter of the arena
    std::vector<std::vector<float>> data(kOperations, std::vector<float>(kCount));
    std::vector<Group::Sequence> started;
    for (auto& tensor : data) {
      fill(tensor.data(), kCount, rank);
      started.push_back(self.group.start_all_reduce(tensor.data(), kCount, DType::float32, ReduceOp::SUM));
    }
    // Each rank in an order of its own.
    for (size_t i = 0; i < kOperations; ++i) {
      self.group.wait(started[(i * 3 + static_cast<size_t>(rank)) % kOperations], kTimeout);
    }
    for (const auto& tensor : data) {
      for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(tensor[i], sum_of(ranks, i)) << i;
    }
    EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShmMemoryTest, ::testing::Values(1, 2, 3, 5, 8),
                         [](const auto& info) { return std::to_string(info.param); });

struct Footprint {
  long pss_kib =
      0;  // of private and shared memory; a library's share changes when other programs come and go
  int mappings = 0;
};

Footprint footprint() {
  Footprint result;
  std::string line;
  std::ifstream rollup("/proc/self/smaps_rollup");
  while (std::getline(rollup, line)) {
    for (const std::string kind : {"Pss_Anon:", "Pss_Shmem:"}) {
      if (line.starts_with(kind)) result.pss_kib += std::stol(line.substr(kind.size()));
    }
  }
  std::ifstream maps("/proc/self/maps");
  while (std::getline(maps, line)) ++result.mappings;
  return result;
}

TEST(ShmMemory, DoesNotGrowOverManyCalls) {
  SKIP_UNDER_THREAD_SANITIZER();
  const UniqueFd fd = create_segment(2, kArenaBytes);
  expect_all_succeed(run_processes(2, [&](int rank) {
    Rank self(fd.get(), rank);
    std::vector<float> data(40000);
    const auto call_all = [&](int times) {
      for (int i = 0; i < times; ++i) {
        for (const size_t count : {1, 16, 300, 3000}) {
          self.group.wait(self.group.start_all_reduce(data.data(), count, DType::float32, ReduceOp::MAX),
                          kTimeout);
        }
        if (i % 100 == 0) {
          broadcast(self.group, data.data(), data.size(), DType::float32, 0, kTimeout);
          self.group.wait(
              self.group.start_all_reduce(data.data(), data.size(), DType::float32, ReduceOp::MAX), kTimeout);
        }
        self.group.barrier(kTimeout);
      }
    };
    call_all(2000);
    const Footprint before = footprint();
    call_all(20000);  // 100,000 operations: a byte from each of them would be seen
    const Footprint after = footprint();
    self.group.barrier(kTimeout);  // a rank that has ended leaves its share of what both use to the other
    EXPECT_EQ(after.mappings, before.mappings);
    EXPECT_GT(before.pss_kib, 0);
    EXPECT_LE(after.pss_kib, before.pss_kib + 64);
    EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
  }));
}

std::string error_of_allocating(Arena& arena, size_t bytes) {
  try {
    arena.allocate(bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ShmMemory, ExhaustedMemoryIsAnErrorAndNoSignal) {
  // Reserved huge pages, of which a machine has none unless told to, run out as a container's memory does.
  constexpr size_t kBytes = size_t{64} << 20;
  const UniqueFd fd(::memfd_create("lockstep-test", MFD_CLOEXEC | MFD_HUGETLB));
  ASSERT_TRUE(fd.valid());
  ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(kBytes)), 0);
  void* const memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  Arena arena(static_cast<std::byte*>(memory), kBytes);
  const std::string text = error_of_allocating(arena, kBytes);
  EXPECT_TRUE(text.starts_with("no memory for 64 MiB of shared memory: raise the memory limit")) << text;
  ::munmap(memory, kBytes);
}

TEST(ShmMemory, MoreThanTheMachineOrItsGroupHasIsRefusedBeforeTheKernelKills) {
  SKIP_UNDER_THREAD_SANITIZER();
  constexpr size_t kBytes = size_t{1} << 46;
  void* const memory = ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Arena arena(static_cast<std::byte*>(memory), kBytes);
  const std::string text = error_of_allocating(arena, kBytes);
  EXPECT_TRUE(text.starts_with("no memory for 67108864 MiB of shared memory: only ")) << text;
  EXPECT_NE(text.find(" are left in this control group or on this machine: raise"), std::string::npos)
      << text;
  ::munmap(memory, kBytes);
}

TEST(ShmMemory, AnArenaThatIsTooSmallIsAnErrorThatSaysWhatToDo) {
  const UniqueFd fd = create_segment(1, kHugePage);
  Node node(fd.get(), 0);
  EXPECT_EQ(error_of_allocating(node.arena(), 3 * kHugePage),
            "the shared arena of 2 MiB has no room for another 6 MiB; raise LOCKSTEP_ARENA_BYTES at the "
            "launcher or free tensors made by empty_shared");
}

}  // namespace
}  // namespace lockstep::shm
