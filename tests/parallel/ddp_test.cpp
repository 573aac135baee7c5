// Jobs under lockrun whose end is what matters.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "tests/under_lockrun.h"

namespace lockstep {
namespace {

using testing::under_lockrun;

TEST(DdpFailureTest, AKilledRankEndsTheJobWithItsNameAndLeavesNothing) {
  const auto result =
      under_lockrun(3, LOCKSTEP_TEST_BIN_DIR "/ddp_by_hand --gtest_filter=Dying.OneRankInTraining");
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.output;
  EXPECT_NE(result.output.find("rank 1"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("SIGKILL"), std::string::npos) << result.output;
  EXPECT_NE(std::system("pgrep -f 'ddp_by_hand --gtest_filter=Dying.OneRankInTraining$' >/dev/null"), 0);
}

}  // namespace
}  // namespace lockstep
