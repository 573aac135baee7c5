#include "launcher/run/held_end.h"

#include <gtest/gtest.h>

namespace {

using lockstep::launcher::HeldEnd;

TEST(HeldEnd, WaitsWhileARankIsReplacedForHalfTheTime) {
  HeldEnd end(30);
  EXPECT_FALSE(end.has_come());
  EXPECT_TRUE(end.waits(true, 100));
  EXPECT_TRUE(end.has_come());
  EXPECT_TRUE(end.waits(true, 114.9));
  EXPECT_FALSE(end.waits(true, 115));
  EXPECT_FALSE(end.waits(false, 101));
  EXPECT_EQ(end.deadline(115), 130) << "it has waited in the time that the ranks have";
}

TEST(HeldEnd, DoesNotWaitWhereNobodyIsReplaced) {
  HeldEnd end(30);
  EXPECT_FALSE(end.waits(false, 100));
  EXPECT_EQ(end.deadline(100), 130);
}

TEST(HeldEnd, WaitsNoLongerThanSomebodyWants) {
  HeldEnd end(30);
  EXPECT_TRUE(end.waits(true, 100));
  end.release();
  EXPECT_FALSE(end.waits(true, 101));
}

}  // namespace
