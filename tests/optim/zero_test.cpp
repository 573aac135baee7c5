// A job under lockrun whose end is what matters.
#include <gtest/gtest.h>

#include "tests/under_lockrun.h"

namespace lockstep {
namespace {

TEST(ZeroFailureTest, AWriteToASharedParameterOutsideStepIsNamed) {
  const auto result =
      testing::under_lockrun(2, LOCKSTEP_TEST_BIN_DIR "/zero_by_hand --gtest_filter=Dying.AWriteOutsideStep",
                             "TORCH_DISTRIBUTED_DEBUG=DETAIL");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("so far so good"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("rank 1: parameter net2.weight was written outside the optimizer's step()"),
            std::string::npos)
      << result.output;
}

}  // namespace
}  // namespace lockstep
