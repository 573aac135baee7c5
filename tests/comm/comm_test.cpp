// Runs the cases of comm_cases under lockrun, on each backend.
#include <gtest/gtest.h>

#include "tests/under_lockrun.h"

namespace lockstep {
namespace {

using testing::expect_case_succeeds;
using testing::under_lockrun;

class CommTest : public ::testing::TestWithParam<int> {};

/// One process per rank runs them all, one after the other.
constexpr const char* kCases =
    "all_reduce half_precision premul_sum complex_numbers layouts gather_and_bytes reduce_and_scatter "
    "all_to_all "
    "messages shared_tensors c10d_backend async_forms coalesced works abandoned_works objects new_groups "
    "group_refusals mesh many_groups";

TEST_P(CommTest, Collectives) {
  expect_case_succeeds(GetParam(), "comm_cases", kCases);
  expect_case_succeeds(GetParam(), "comm_cases", "refusals");
  expect_case_succeeds(GetParam(), "comm_cases", "ten_operations_then_exit");
}

INSTANTIATE_TEST_SUITE_P(Ranks, CommTest, ::testing::Values(1, 2, 3, 5),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(CommMemoryTest, DoesNotGrowWithCalls) { expect_case_succeeds(2, "comm_cases", "memory_stays"); }

TEST(CommGlooTest, Collectives) {
  expect_case_succeeds(
      3, "comm_cases",
      "all_reduce half_precision premul_sum complex_numbers layouts gather_and_bytes reduce_and_scatter "
      "all_to_all "
      "messages shared_tensors async_forms coalesced works abandoned_works objects new_groups mesh",
      "LOCKSTEP_BACKEND=gloo");
  expect_case_succeeds(2, "comm_cases", "ten_operations_then_exit", "LOCKSTEP_BACKEND=gloo");
}

TEST(CommFailureTest, AMonitoredBarrierNamesWhoIsMissing) {
  expect_case_succeeds(3, "comm_cases", "late_for_monitored_barrier");
  expect_case_succeeds(3, "comm_cases", "late_for_monitored_barrier", "LOCKSTEP_BACKEND=gloo");
}

TEST(CommFailureTest, ADeadlineNamesTheOperationAndWhoIsMissing) {
  expect_case_succeeds(2, "comm_cases", "late_for_a_sum");
}

TEST(SpawnTest, StartsWatchesAndEndsRanks) {
  const std::string line = "timeout 60 " LOCKSTEP_TEST_BIN_DIR
                           "/spawn_cases ends_well gloo_works_too failures contexts leaves_nothing 2>&1";
  FILE* pipe = ::popen(line.c_str(), "r");
  std::string output;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
  EXPECT_EQ(::pclose(pipe), 0) << output;
}

TEST(CommFailureTest, AnUnknownBackendIsRefused) {
  const auto result =
      under_lockrun(1, LOCKSTEP_TEST_BIN_DIR "/comm_cases all_reduce", "LOCKSTEP_BACKEND=glow");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("there is no backend \"glow\"; choose lockstep"), std::string::npos)
      << result.output;
}

TEST(CommFailureTest, AKilledRankEndsTheJobWithItsName) {
  const auto result = under_lockrun(3, LOCKSTEP_TEST_BIN_DIR "/comm_cases rank_one_dies");
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.output;
  EXPECT_NE(result.output.find("rank 1"), std::string::npos) << result.output;
}

TEST(CommLaunchTest, AContradictoryEnvironmentIsRefused) {
  const auto run = [](const std::string& environment) {
    testing::LockrunResult result;
    FILE* pipe = ::popen(
        (environment + " timeout 20 " LOCKSTEP_TEST_BIN_DIR "/comm_cases all_reduce 2>&1").c_str(), "r");
    char buffer[4096];
    while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) result.output.append(buffer, n);
    result.exit_code = WEXITSTATUS(::pclose(pipe));
    return result;
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
