// Runs the cases of zero_cases under lockrun.
#include <gtest/gtest.h>

#include "tests/under_lockrun.h"

namespace lockstep {
namespace {

using testing::expect_case_succeeds;

class ZeroTest : public ::testing::TestWithParam<int> {};

TEST_P(ZeroTest, Cases) {
  expect_case_succeeds(GetParam(), "zero_cases",
                       "wrong_use_is_named equals_the_plain_optimizer zero_under_join"
                       " zero_under_join_with_unused_parameters a_step_that_join_does_not_know_of");
}

TEST_P(ZeroTest, Fused) {
  expect_case_succeeds(
      GetParam(), "zero_cases",
      "adamw_without_clipping adamw_with_clipping sgd_with_clipping parameters_stay_what_they_are"
      " other_optimizers_with_and_without_clipping unused_and_added_parameters wrong_use_of_the_fused_one"
      " no_parameter_changes_under_a_backward_pass fused_zero_under_join any_zero_grad_will_do"
      " shared_parameters_after_the_optimizer");
}

INSTANTIATE_TEST_SUITE_P(Ranks, ZeroTest, ::testing::Values(2, 3, 4),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(ZeroGlooTest, Cases) {
  expect_case_succeeds(2, "zero_cases",
                       "wrong_use_is_named equals_the_plain_optimizer the_fused_one_needs_shared_memory"
                       " zero_under_join a_step_that_join_does_not_know_of",
                       "LOCKSTEP_BACKEND=gloo");
}

TEST(ZeroFailureTest, AWriteToASharedParameterOutsideStepIsNamed) {
  const auto result = testing::under_lockrun(2, LOCKSTEP_TEST_BIN_DIR "/zero_cases a_write_outside_step",
                                             "TORCH_DISTRIBUTED_DEBUG=DETAIL");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("so far so good"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("rank 1: parameter net2.weight was written outside the optimizer's step()"),
            std::string::npos)
      << result.output;
}

}  // namespace
}  // namespace lockstep
