// What follows from missing gradients: a decision without ranks.
#include "lockstep/parallel/ddp/pass_report.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Outcome = PassVerdict::Outcome;

TEST(PassReportTest, MissingGradientsAreAnErrorUnlessTheyAreAllowed) {
  const PassVerdict strict = decide({"a110", "a101"}, /*allows_missing=*/false);
  EXPECT_EQ(strict.outcome, Outcome::refused);
  EXPECT_EQ(describe_missing(strict, {"a", "b", "c"}), "b (rank 1); c (rank 0)");
  EXPECT_EQ(decide({"a110", "a101"}, true).outcome, Outcome::averaged);
  EXPECT_EQ(decide({"a11", "a11"}, false).outcome, Outcome::averaged);
}

TEST(PassReportTest, AParameterIsUsedWhereAnyRankHasAGradientSinceTheLastPass) {
  const PassVerdict verdict = decide({"a10e0", "a0000"}, true);
  EXPECT_EQ(verdict.is_used, (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(decide({"a1e", "a1e"}, false).outcome, Outcome::refused);  // not in this backward
}

TEST(PassReportTest, RanksThatHaveJoinedMissNothing) {
  const PassVerdict verdict = decide({"j00", "a11"}, false);
  EXPECT_EQ(verdict.outcome, Outcome::averaged);
  EXPECT_EQ(verdict.is_used, (std::vector<bool>{true, true}));
}

TEST(PassReportTest, ARankThatFailedSpoilsThePassForAll) {
  const PassVerdict verdict = decide({"a1", "f0", "n0", "j0"}, true);
  EXPECT_EQ(verdict.outcome, Outcome::failed);
  EXPECT_EQ(describe_ranks(verdict.failed_ranks), "1, 2");
  EXPECT_EQ(decide({"f1", "f0"}, true).outcome, Outcome::failed);
  EXPECT_EQ(decide({"n0", "f0"}, true).outcome, Outcome::failed);
}

TEST(PassReportTest, WhereNoForwardEndedWellNothingHasHappened) {
  EXPECT_EQ(decide({"n0", "ne"}, false).outcome, Outcome::untouched);
}

TEST(PassReportTest, AnErrorNamesTwentyParameters) {
  const std::string report = "a" + std::string(23, '0');
  const std::vector<std::string> names(23, "p");
  const std::string text = describe_missing(decide({report}, false), names);
  EXPECT_EQ(text.substr(0, 23), "p (rank 0); p (rank 0);");
  EXPECT_EQ(text.substr(text.size() - 10), "and 3 more");
}

}  // namespace
}  // namespace lockstep
