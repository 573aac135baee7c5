#include "launcher/machines/replacement_grants.h"

#include <gtest/gtest.h>

namespace {

using lockstep::launcher::ReplacementGrants;

TEST(ReplacementGrants, EachBeginsAnEpoch) {
  ReplacementGrants grants(9);
  EXPECT_EQ(grants.ask().epoch, 1U);
  EXPECT_EQ(grants.ask().epoch, 2U);
}

TEST(ReplacementGrants, SoManyOverAllRounds) {
  ReplacementGrants grants(2);
  EXPECT_EQ(grants.ask().epoch, 1U);
  grants.begin_round();
  EXPECT_EQ(grants.ask().epoch, 1U) << "counted from 1 in each round";
  grants.begin_round();
  const auto answer = grants.ask();
  EXPECT_EQ(answer.epoch, 0U);
  EXPECT_EQ(answer.refusal, "--max-replacements 2 are used up");
}

TEST(ReplacementGrants, SeveralAtOnceBeginOneEpochAndCountEach) {
  ReplacementGrants grants(3);
  EXPECT_EQ(grants.ask(2).epoch, 1U);
  EXPECT_EQ(grants.ask(2).refusal, "of --max-replacements 3 only 1 are left, and it had 2 ranks");
  EXPECT_EQ(grants.ask().epoch, 2U);
}

TEST(ReplacementGrants, ThoseThatWereRefusedElsewhereDoNotCount) {
  ReplacementGrants grants(4);
  grants.ask();
  grants.ask(2);
  grants.ask();
  grants.take_back(2);
  grants.take_back(2);
  grants.take_back(0);
  grants.take_back(9);
  grants.begin_round();
  EXPECT_EQ(grants.ask(3).epoch, 1U) << "one has been replaced";
  EXPECT_EQ(grants.ask().refusal, "--max-replacements 4 are used up");
}

TEST(ReplacementGrants, NoneWhereNoneAreWanted) {
  EXPECT_EQ(ReplacementGrants(0).ask().refusal, "--max-replacements 0 are used up");
}

}  // namespace
