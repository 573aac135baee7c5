#include "launcher/machines/replacement_grants.h"

#include <gtest/gtest.h>

namespace {

using lockstep::launcher::ReplacementGrants;

TEST(ReplacementGrants, OneRankAtATime) {
  ReplacementGrants grants(9);
  grants.begin_round();
  EXPECT_EQ(grants.ask(3).epoch, 1u);
  EXPECT_EQ(grants.ask(1).epoch, 0u);
  EXPECT_EQ(grants.ask(1).refusal,
            "rank 3 is being replaced, and on several machines only one rank is at a time");
  EXPECT_EQ(grants.ask(3).refusal, "it had not got the job's state yet");
  grants.came_back(1);  // another one
  EXPECT_EQ(grants.ask(1).epoch, 0u);
  grants.came_back(3);
  EXPECT_EQ(grants.ask(1).epoch, 2u);
}

TEST(ReplacementGrants, SoManyOverAllRounds) {
  ReplacementGrants grants(2);
  grants.begin_round();
  EXPECT_EQ(grants.ask(0).epoch, 1u);
  grants.begin_round();
  EXPECT_EQ(grants.ask(1).epoch, 1u) << "the ranks are new, and so is their memory";
  grants.came_back(1);
  EXPECT_EQ(grants.ask(1).refusal, "--max-replacements 2 are used up");
}

TEST(ReplacementGrants, NoneWhereNoneAreWanted) {
  EXPECT_EQ(ReplacementGrants(0).ask(0).refusal, "--max-replacements 0 are used up");
}

}  // namespace
