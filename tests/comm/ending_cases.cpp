// Cases that end the job: comm_test.cpp looks at how.
#include <ATen/ops/zeros.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "lockstep/base/error.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using lockstep::testing::check_throws;

namespace {

TEST(Ending, TenOperationsThenExit) {
  const World world = lockstep::testing::world();
  for (int i = 0; i < 10; ++i) world.all_reduce(at::zeros({100000}));
  std::exit(0);
}

/// Rank 0 ends with the exit code TEST_EXIT_CODE; the others go on until the file TEST_GO is there.
TEST(Ending, RankZeroEndsFirst) {
  const World world = lockstep::testing::world();
  world.barrier();
  if (world.rank() == 0) {
    std::puts("rank 0 ends");
    std::fflush(stdout);
    std::exit(std::atoi(std::getenv("TEST_EXIT_CODE")));
  }
  while (!std::filesystem::exists(std::getenv("TEST_GO")))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::exit(0);
}

TEST(Ending, RankOneDies) {
  const World world = lockstep::testing::world();
  world.barrier();
  if (world.rank() == 1) ::raise(SIGKILL);
  const auto wait = [&] { world.all_reduce(at::zeros({100000})); };
  if (world.backend_name() != "lockstep") return check_throws<CommError>(wait, "");
  check_throws<PeerLostError>(wait, "lost rank 1");
}

}  // namespace
