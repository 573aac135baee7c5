// Runs the cases of zero_cases under lockrun.
#include <gtest/gtest.h>

#include "tests/under_lockrun.h"

namespace lockstep {
namespace {

using testing::expect_case_succeeds;

class ZeroTest : public ::testing::TestWithParam<int> {};

TEST_P(ZeroTest, Cases) {
  expect_case_succeeds(GetParam(), "zero_cases", "wrong_use_is_named equals_the_plain_optimizer");
}

INSTANTIATE_TEST_SUITE_P(Ranks, ZeroTest, ::testing::Values(2, 3, 4),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(ZeroGlooTest, Cases) {
  expect_case_succeeds(2, "zero_cases", "wrong_use_is_named equals_the_plain_optimizer",
                       "LOCKSTEP_BACKEND=gloo");
}

}  // namespace
}  // namespace lockstep
