// Collectives on parts of tensors, and memory that all ranks have in common.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/parts.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using namespace lockstep::detail;
using lockstep::testing::check_throws;
using lockstep::testing::world;

namespace {

at::Tensor numbers_of(int rank, int64_t count) { return at::arange(count, at::kFloat) * 0.1 + rank; }

/// Elements [begin, end) of `count` go to `rank`: two runs each, with something left over that nobody names.
std::vector<std::vector<TensorPart>> two_runs_each(int64_t count, int ranks) {
  std::vector<std::vector<TensorPart>> parts(static_cast<size_t>(ranks));
  const int64_t run = count / (2 * ranks + 1);
  for (int64_t i = 0; i < 2 * ranks; ++i) parts[static_cast<size_t>(i % ranks)].push_back({i * run, run});
  return parts;
}

TEST(Parts, PartsOfTensors) {
  ONLY_IF(world().backend_name() == "lockstep");
  const World world = lockstep::testing::world();
  // Inside a post, through staging, in place or by window.
  for (const int64_t count : {20, 1000, 100000, 700001}) {
    const auto parts = two_runs_each(count, world.size());
    for (const bool registered : {true, false}) {
      at::Tensor tensor = registered ? world.empty_shared({count}, at::kFloat) : at::empty({count});
      tensor.copy_(numbers_of(world.rank(), count));
      at::Tensor average = numbers_of(world.rank(), count).contiguous();
      world.all_reduce(average, {.op = ReduceOp::AVG});
      at::Tensor expected = numbers_of(world.rank(), count);
      for (const TensorPart& part : parts[static_cast<size_t>(world.rank())]) {
        expected.narrow(0, part.first, part.count).copy_(average.narrow(0, part.first, part.count));
      }
      reduce_parts_async(world, tensor, parts[static_cast<size_t>(world.rank())], {.op = ReduceOp::AVG})
          ->wait();
      CHECK_EQUAL(tensor, expected);
      // Everybody gets everybody's parts; what nobody names stays.
      for (const auto& of_rank : parts) {
        for (const TensorPart& part : of_rank) {
          expected.narrow(0, part.first, part.count).copy_(average.narrow(0, part.first, part.count));
        }
      }
      all_gather_parts_async(world, tensor, parts)->wait();
      CHECK_EQUAL(tensor, expected);
    }
  }
  const at::Tensor tensor = at::zeros({10});
  check_throws<ValueError>(
      [&] {
        reduce_parts_async(world, tensor, {{8, 3}});
      },
      "the part of 3 elements that begins at 8 is outside the tensor of 10");
  check_throws<ValueError>([&] { all_gather_parts_async(world, tensor, {}); }, "all_gather_parts needs");
  check_throws<ValueError>(
      [&] {
        reduce_parts_async(world, tensor, {{5, 3}, {2, 0}, {1, 5}});
      },
      "the part of 5 elements that begins at 1 overlaps the one that begins at 5");
  std::vector<std::vector<TensorPart>> parts(static_cast<size_t>(world.size()));
  parts.front().push_back({0, 4});
  parts.back().push_back({3, 2});
  check_throws<ValueError>([&] { all_gather_parts_async(world, tensor, parts); },
                           "all_gather_parts: the part of 4");
  check_throws<ValueError>([&] { reduce_parts_async(world, at::zeros({4, 3}).t(), {}); }, "contiguous");
}

TEST(Parts, PartsNeedSharedMemory) {
  ONLY_IF(world().backend_name() == "gloo");
  const World world = lockstep::testing::world();
  const at::Tensor tensor = at::zeros({10});
  const std::string why = "needs the \"lockstep\" backend, not \"gloo\"";
  check_throws<ValueError>([&] { reduce_parts_async(world, tensor, {}); }, why);
  check_throws<ValueError>([&] { all_gather_parts_async(world, tensor, two_runs_each(10, world.size())); },
                           why);
  check_throws<ValueError>([&] { empty_common(world, {3}, at::kFloat); }, why);
}

TEST(Parts, PartsOfMemoryInCommon) {
  ONLY_IF(world().backend_name() == "lockstep");
  const World world = lockstep::testing::world();
  for (const int64_t count : {20, 5000, 700001}) {
    const auto parts = two_runs_each(count, world.size());
    const at::Tensor common = empty_common(world, {count}, at::kFloat);
    if (is_first_on_machine(world)) common.fill_(-1);
    at::Tensor expected = at::full({count}, -1, at::kFloat);
    for (size_t r = 0; r < parts.size(); ++r) {
      for (const TensorPart& part : parts[r]) {
        expected.narrow(0, part.first, part.count).fill_(10 + static_cast<int64_t>(r));
      }
    }
    world.barrier();
    for (const TensorPart& part : parts[static_cast<size_t>(world.rank())]) {
      common.narrow(0, part.first, part.count).fill_(10 + world.rank());
    }
    share_parts(world, common, parts);
    CHECK_EQUAL(common, expected);
    world.barrier();
  }
}

TEST(Parts, MemoryInCommon) {
  ONLY_IF(world().backend_name() == "lockstep");
  ONLY_IF(world().local_world_size() == world().size());
  const World world = lockstep::testing::world();
  const int last = world.size() - 1;
  const void* first_place = nullptr;
  for (int round = 0; round < 3; ++round) {
    at::Tensor common = empty_common(world, {world.size(), 5000}, at::kDouble);
    // Once all have dropped it, its memory is used again.
    if (round == 0) first_place = common.const_data_ptr();
    CHECK_TRUE(common.const_data_ptr() == first_place);
    CHECK_TRUE(reinterpret_cast<uintptr_t>(common.const_data_ptr()) % 4096 == 0);
    common[world.rank()].fill_(100 * round + world.rank());
    world.barrier();
    for (int r = 0; r <= last; ++r) {
      CHECK_EQUAL(common[r], at::full({5000}, 100 * round + r, at::kDouble));
    }
    world.barrier();
    // The last rank keeps it longer than the others, of which rank 0 would take its place, were it free.
    at::Tensor other;
    if (world.rank() != last) {
      common.reset();
      other = world.empty_shared({world.size(), 5000}, at::kDouble);
      other.fill_(-1);
    }
    world.barrier();
    if (common.defined()) CHECK_EQUAL(common[0], at::full({5000}, 100 * round, at::kDouble));
    common.reset();
    other.reset();
    world.barrier();
  }
}

}  // namespace
