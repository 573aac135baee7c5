// Cases that end the job: comm_test.cpp looks at how.
#include <ATen/ops/zeros.h>

#include <csignal>
#include <cstdlib>

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

TEST(Ending, RankOneDies) {
  const World world = lockstep::testing::world();
  world.barrier();
  if (world.rank() == 1) ::raise(SIGKILL);
  check_throws<PeerLostError>([&] { world.all_reduce(at::zeros({100000})); }, "lost rank 1");
}

}  // namespace
