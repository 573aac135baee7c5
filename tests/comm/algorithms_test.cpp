// The choice of an all-reduce algorithm.
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/algorithms/choice.h"

namespace lockstep {
namespace {

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
  EXPECT_EQ(algorithms::resolve(AllReduceAlgorithm::AUTO), algorithms::kAutomatic);
  EXPECT_NE(algorithms::kAutomatic, AllReduceAlgorithm::AUTO);
  EXPECT_EQ(algorithms::resolve(AllReduceAlgorithm::RING), AllReduceAlgorithm::RING);
}

}  // namespace
}  // namespace lockstep
