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
  for (const char* backend : {"lockstep", "gloo", "mpi", "nccl"}) {
    for (const size_t bytes : {size_t{0}, size_t{4096}, size_t{1} << 30}) {
      EXPECT_NE(algorithms::choose(backend, bytes, 8), AllReduceAlgorithm::AUTO);
    }
  }
}

}  // namespace
}  // namespace lockstep
