// How a process joins its job, what the job tells it, and how it leaves.
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cstdio>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/comm/numbers.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using lockstep::testing::check_throws;
using lockstep::testing::of;
using lockstep::testing::sum_of;
using lockstep::testing::world;

namespace {

TEST(Joining, Refusals) {
  ONLY_IF(world().backend_name() == "lockstep" && world().local_world_size() == world().size());
  const World world = lockstep::testing::world();
  CHECK_TRUE(world.local_rank() == world.rank());
  CHECK_TRUE(world.local_world_size() == world.size());
  check_throws<Error>([] { init(); }, "was called before");
  check_throws<ValueError>([&] { world.all_reduce(at::zeros({3}, at::kBool), {.op = ReduceOp::AVG}); },
                           "a reduction cannot combine bool by AVG");
  check_throws<ValueError>([&] { world.broadcast(at::zeros({3}), {.src = world.size()}); },
                           "is outside the group");
  world.barrier();
  // Refused before anything was sent: the group still works. A mismatch breaks it.
  if (world.size() > 1) {
    const auto mismatch = [&] { world.all_reduce(at::zeros({world.rank() + 1})); };
    check_throws<MismatchError>(mismatch, "rank 0 called all_reduce #");
    check_throws<MismatchError>([&] { world.barrier(); }, "rank 0 called all_reduce #");
    destroy();
  }
}

/// Prints where this process finds itself, and uses the stores.
TEST(Joining, Place) {
  const World world = lockstep::testing::world();
  const auto store = default_store();
  const auto named = c10::make_intrusive<c10d::PrefixStore>("case", store);
  named->set(std::to_string(world.rank()), std::to_string(world.rank() * 7));
  for (int r = 0; r < world.size(); ++r) {
    const auto value = named->get(std::to_string(r));
    CHECK_TRUE(std::string(value.begin(), value.end()) == std::to_string(r * 7));
  }
  std::printf("rank %d of %d, local %d of %d, node %d, %s\n", world.rank(), world.size(), world.local_rank(),
              world.local_world_size(), world.group_rank(), world.backend_name().c_str());
  world.barrier();
}

/// A job can be left and joined again, as often as one likes.
TEST(Joining, JoinedAgain) {
  std::optional<World> earlier;
  for (int round = 0; round < 4; ++round) {
    const World world = lockstep::testing::world();
    std::vector<int> everyone;
    for (int r = 0; r < world.size(); ++r) everyone.push_back(r);
    const at::Tensor tensor = of(world.rank(), 5000);
    world.all_reduce(tensor);
    CHECK_EQUAL(tensor, sum_of(everyone, 5000));
    const auto store = default_store();
    store->set("round" + std::to_string(round) + "/" + std::to_string(world.rank()), "here");
    for (int r = 0; r < world.size(); ++r)
      store->get("round" + std::to_string(round) + "/" + std::to_string(r));
    world.barrier();
    if (earlier) earlier->destroy();  // of a job that has ended: this one goes on
    CHECK_TRUE(is_initialized());
    if (round % 2 == 0) {
      world.destroy();
    } else {
      destroy();
    }
    CHECK_TRUE(!is_initialized());
    check_throws<Error>([&] { default_world(); }, "call lockstep::init() first");
    check_throws<Error>([&] { world.barrier(); }, "");
    world.destroy();  // twice is once
    earlier.emplace(world);
  }
}

}  // namespace
