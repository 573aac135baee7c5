// Runs algorithm_cases under lockrun.
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/algorithms/choice.h"
#include "tests/under_lockrun.h"

namespace lockstep {
namespace {

using testing::expect_case_succeeds;

class AlgorithmsTest : public ::testing::TestWithParam<int> {};

TEST_P(AlgorithmsTest, GiveTheBitsThatTheyPromise) {
  expect_case_succeeds(GetParam(), "algorithm_cases", "random_trials", "LOCKSTEP_RANKS_PER_NODE=2");
}

INSTANTIATE_TEST_SUITE_P(Ranks, AlgorithmsTest, ::testing::Range(1, 10),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(AlgorithmsOnGlooTest, GiveTheSameBits) {
  expect_case_succeeds(3, "algorithm_cases", "random_trials",
                       "LOCKSTEP_BACKEND=gloo LOCKSTEP_RANKS_PER_NODE=2");
}

TEST(AlgorithmChoiceTest, TheEnvironmentDecidesWhereTheCallDoesNot) {
  expect_case_succeeds(5, "algorithm_cases", "environment", "LOCKSTEP_ALL_REDUCE_ALGORITHM=ring");
}

TEST(AlgorithmChoiceTest, AnUnknownNameIsAnErrorThatListsTheNames) {
  try {
    algorithms::algorithm_named("star");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(),
                 "there is no all-reduce algorithm \"star\"; choose one of auto, direct, reduce_broadcast, "
                 "all_to_all, ring, tree, halving_doubling, hierarchical");
  }
}

TEST(AlgorithmChoiceTest, NeverLeavesTheChoiceOpen) {
  for (const char* backend : {"lockstep", "gloo", "mpi", "nccl"}) {
    for (const size_t bytes : {size_t{0}, size_t{4096}, size_t{1} << 30}) {
      EXPECT_NE(algorithms::choose(backend, bytes, 8), AllReduceAlgorithm::AUTO);
    }
  }
}

}  // namespace
}  // namespace lockstep
