// Runs the cases of ddp_cases under lockrun, on each backend.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "tests/under_lockrun.h"

namespace lockstep {
namespace {

using testing::expect_case_succeeds;
using testing::under_lockrun;

constexpr const char* kCases[] = {"bucket_size_does_not_change_the_bits",
                                  "gradients_live_in_the_buckets",
                                  "eval_and_no_grad_arm_nothing",
                                  "a_missing_gradient_is_named",
                                  "unused_parameters",
                                  "different_modules_are_refused",
                                  "buffers_follow_rank_0"};

class DdpTest : public ::testing::TestWithParam<int> {};

TEST_P(DdpTest, Cases) {
  for (const char* name : kCases) {
    SCOPED_TRACE(name);
    expect_case_succeeds(GetParam(), "ddp_cases", name);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, DdpTest, ::testing::Values(2, 3),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(DdpGlooTest, Cases) {
  for (const char* name : kCases) {
    SCOPED_TRACE(name);
    expect_case_succeeds(2, "ddp_cases", name, "LOCKSTEP_BACKEND=gloo");
  }
}

TEST(DdpFailureTest, AKilledRankEndsTheJobWithItsNameAndLeavesNothing) {
  const auto result = under_lockrun(3, LOCKSTEP_TEST_BIN_DIR "/ddp_cases one_rank_dies_in_training");
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.output;
  EXPECT_NE(result.output.find("rank 1"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("SIGKILL"), std::string::npos) << result.output;
  EXPECT_NE(std::system("pgrep -f 'ddp_cases one_rank_dies_in_training$' >/dev/null"), 0);
}

}  // namespace
}  // namespace lockstep
