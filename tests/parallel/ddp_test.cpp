// Jobs under lockrun whose end is what matters.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "tests/under_lockrun.h"

namespace lockstep {
namespace {

using testing::under_lockrun;

TEST(DdpFailureTest, AKilledRankEndsTheJobWithItsNameAndLeavesNothing) {
  // A filter of its own, so that another run of this test on the machine is not taken for this one.
  const std::string ranks =
      "ddp_by_hand --gtest_filter=Dying.OneRankInTraining:none-of-" + std::to_string(::getpid());
  const auto result = under_lockrun(3, LOCKSTEP_TEST_BIN_DIR "/" + ranks);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.output;
  EXPECT_NE(result.output.find("rank 1"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("SIGKILL"), std::string::npos) << result.output;
  EXPECT_NE(std::system(("pgrep -f '" + ranks + "$' >/dev/null").c_str()), 0);
}

}  // namespace
}  // namespace lockstep
