#include "launcher/run/spares.h"

#include <gtest/gtest.h>

namespace {

using lockstep::launcher::Spares;

/// One that waits in each slot.
Spares waiting(int count) {
  Spares spares(count, 30);
  for (int i = 0; i < count; ++i) {
    const int slot = spares.take_missing();
    spares.started(slot, 100 + slot, 1);
    spares.waits(slot);
  }
  return spares;
}

TEST(Spares, ThereAreAsManyAsWantedAndNoMoreThanReplacementsAreLeft) {
  Spares spares(3, 30);
  EXPECT_FALSE(spares.has_missing(0));
  EXPECT_TRUE(spares.has_missing(2));
  EXPECT_EQ(spares.take_missing(), 0);
  EXPECT_EQ(spares.take_missing(), 1);
  EXPECT_FALSE(spares.has_missing(2));
  EXPECT_TRUE(spares.has_missing(3));
  EXPECT_FALSE(Spares(0, 30).has_missing(9));
}

TEST(Spares, OneThatWaitsGoesFirst) {
  Spares spares(2, 30);
  spares.started(spares.take_missing(), 100, 1);
  spares.started(spares.take_missing(), 101, 2);
  spares.waits(1);
  EXPECT_EQ(spares.take(3), 1);
  EXPECT_EQ(spares.take(3), 0) << "it is on its way";
  EXPECT_EQ(spares.take(3), std::nullopt);
  EXPECT_TRUE(spares.has_missing(1));
}

TEST(Spares, OneThatDoesNotComeIsNotReliedOn) {
  Spares spares(1, 30);
  const int slot = spares.take_missing();
  EXPECT_EQ(spares.take(2), std::nullopt) << "not started yet";
  spares.started(slot, 100, 1);
  EXPECT_EQ(spares.take(32), std::nullopt);
  spares.waits(slot);
  EXPECT_EQ(spares.take(32), 0);
}

TEST(Spares, OneThatDiesWhileItWaitsIsFollowedByAnotherThreeTimes) {
  Spares spares = waiting(1);
  EXPECT_EQ(spares.ended(0, "was killed by SIGKILL"),
            "spare 0 (pid 100) was killed by SIGKILL while it waited; another one is started");
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(spares.has_missing(5));
    spares.started(spares.take_missing(), 101, 2);
    spares.waits(0);
    if (i == 0) spares.ended(0, "was killed by SIGKILL");
  }
  EXPECT_NE(spares.ended(0, "was killed by SIGKILL").find("the 3rd in a row, and no more are started"),
            std::string::npos);
  EXPECT_FALSE(spares.has_missing(5));
}

TEST(Spares, ATakenPlaceBeginsTheCountAnew) {
  Spares spares = waiting(2);
  for (int i = 0; i < 4; ++i) {
    EXPECT_NE(spares.ended(0, "died").find("another one is started"), std::string::npos) << i;
    EXPECT_EQ(spares.take(3), 1);
    for (int started = 0; started < 2; ++started) {
      const int slot = spares.take_missing();
      spares.started(slot, 200, 3);
      spares.waits(slot);
    }
  }
}

TEST(Spares, OneThatEndsBeforeItWaitsIsTheLast) {
  Spares spares(1, 30);
  spares.started(spares.take_missing(), 100, 1);
  EXPECT_EQ(
      spares.ended(0, "ended with exit code 3"),
      "spare 0 (pid 100) ended with exit code 3 before it waited in init(), and no more are started: RANK is \"spare\" until "
      "init() returns");
  EXPECT_FALSE(spares.has_missing(5));
  Spares others(1, 30);
  others.take_missing();
  EXPECT_NE(others.ended(0, "could not be started: no memory").find("spare 0 could not be started"),
            std::string::npos);
}

TEST(Spares, OneThatEndsWhenItIsTakenIsToldOfOnce) {
  Spares spares = waiting(1);
  EXPECT_EQ(spares.take(2), 0);
  EXPECT_EQ(spares.ended(0, "died"), "");
  EXPECT_TRUE(spares.has_missing(1));
}

TEST(Spares, ThoseThatWereNeverStartedAreComplainedOf) {
  EXPECT_EQ(Spares(0, 30).find_complaint(), "");
  EXPECT_NE(Spares(2, 30).find_complaint().find("--spares 2: none was started"), std::string::npos);
  EXPECT_EQ(waiting(1).find_complaint(), "");
}

}  // namespace
