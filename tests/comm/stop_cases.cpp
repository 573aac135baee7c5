// A program of its own: stop_requested() catches signals for good, and what it has caught stays.
#include <gtest/gtest.h>

#include <csignal>

#include "lockstep/comm/stop_requested.h"
#include "tests/ranks/rank_test.h"

namespace lockstep::testing {
namespace {

TEST(StopRequested, IsTheSameOnAllRanks) {
  EXPECT_EQ(stop_requested(world()), 0);
  if (world().rank() == world().size() - 1) ::raise(SIGUSR1);
  EXPECT_EQ(stop_requested(world()), SIGUSR1);
  EXPECT_EQ(stop_requested(world()), SIGUSR1);
}

}  // namespace
}  // namespace lockstep::testing
