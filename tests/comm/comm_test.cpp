// Jobs whose beginning or end is what matters.
#include <gtest/gtest.h>

#include "tests/under_lockrun.h"

namespace lockstep {
namespace {

using testing::expect_case_succeeds;
using testing::run_command;
using testing::under_lockrun;

TEST(CommTest, RanksMayEndRightAfterTheirLastOperation) {
  for (const int ranks : {1, 2, 3, 5}) {
    expect_case_succeeds(ranks, "ending_cases", "--gtest_filter=Ending.TenOperationsThenExit");
  }
  expect_case_succeeds(2, "ending_cases", "--gtest_filter=Ending.TenOperationsThenExit",
                       "LOCKSTEP_BACKEND=gloo");
}

/// Standard output and error of a program that must succeed.
std::string output_of(const std::string& command) {
  const auto result = run_command("timeout -k 5 60 " + command);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return result.output;
}

TEST(MessagesTest, PrintsTheSameUnderLockrunAndByItself) {
  const std::string own = output_of(LOCKSTEP_BIN_DIR "/messages 3");
  EXPECT_EQ(own,
            output_of("env OMP_NUM_THREADS=1 " LOCKSTEP_BIN_DIR
                      "/lockrun --standalone --nproc-per-node 3 --prefix off " LOCKSTEP_BIN_DIR "/messages"));
  const char* const sum = R"(all_reduce: the sum everywhere
  before rank 0  [1 2]
  before rank 1  [11 12]
  before rank 2  [21 22]
  after  rank 0  [33 36]
  after  rank 1  [33 36]
  after  rank 2  [33 36]
)";
  for (const char* part :
       {"send and recv, blocking", "  after  rank 2  [1 2]\n", "isend and irecv",
        "  after  rank 0  [21 22]\n", sum, "scatter", "  after  rank 2  [102 102]\n", "gather",
        "  after  rank 0  [1 2 11 12 21 22]\n", "all_gather", "  after  rank 1  [1 2 11 12 21 22]\n",
        "broadcast", "  after  rank 1  [21 22]\n", "reduce"}) {
    EXPECT_NE(own.find(part), std::string::npos) << part << "\nin:\n" << own;
  }
  EXPECT_NE(output_of("sh -c '! " LOCKSTEP_BIN_DIR "/messages three'")
                .find("three: expected a number from 1 to 256"),
            std::string::npos);
}

TEST(CommFailureTest, AnUnknownBackendIsRefused) {
  const auto result =
      under_lockrun(1, LOCKSTEP_TEST_BIN_DIR "/collective_cases --gtest_filter=Collectives.AllReduce",
                    "LOCKSTEP_BACKEND=glow");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("there is no backend \"glow\"; choose lockstep"), std::string::npos)
      << result.output;
}

TEST(CommFailureTest, AKilledRankEndsTheJobWithItsName) {
  for (const char* backend : {"lockstep", "gloo"}) {
    const auto result =
        under_lockrun(3, LOCKSTEP_TEST_BIN_DIR "/ending_cases --gtest_filter=Ending.RankOneDies",
                      std::string("LOCKSTEP_BACKEND=") + backend);
    EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.output;
    EXPECT_NE(result.output.find("rank 1"), std::string::npos) << result.output;
  }
}

TEST(CommLaunchTest, AContradictoryEnvironmentIsRefused) {
  const auto run = [](const std::string& environment) {
    return run_command(environment + " timeout 20 " LOCKSTEP_TEST_BIN_DIR
                                     "/collective_cases --gtest_filter=Collectives.AllReduce");
  };
  EXPECT_EQ(run("").exit_code, 0);  // alone
  const auto missing = run("RANK=0");
  EXPECT_NE(missing.output.find("environment variable WORLD_SIZE is missing while RANK is set"),
            std::string::npos)
      << missing.output;
  const auto outside = run("RANK=2 WORLD_SIZE=2");
  EXPECT_NE(outside.output.find("RANK=2 must be 0 to 1"), std::string::npos) << outside.output;
  EXPECT_EQ(outside.exit_code, 2);
}

}  // namespace
}  // namespace lockstep
