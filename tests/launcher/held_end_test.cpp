#include "launcher/run/held_end.h"

#include <gtest/gtest.h>

#include "launcher/run/replacements.h"
#include "lockstep/shm/segment.h"

namespace {

using lockstep::launcher::HeldEnd;
using lockstep::launcher::Replacements;
using lockstep::launcher::WorkerResult;

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

TEST(Replacements, ARankThatIsBackIsNewUntilItCanNoticeThatItIsToEnd) {
  const lockstep::UniqueFd memory = lockstep::shm::create_segment(2, 0, "replacements", /*can_heal=*/true);
  const auto segment = lockstep::shm::Segment::map(memory.get());
  std::vector<WorkerResult> workers{{.rank = 0, .pid = 10}, {.rank = 1, .pid = 11}};
  auto& record = segment.rank_record(1);
  record.committed_step = 7;
  const auto has_handler = [](pid_t) { return true; };
  const auto has_none = [](pid_t) { return false; };
  Replacements replacements(3, segment);
  replacements.begin(workers[1], 1, 100);
  EXPECT_TRUE(replacements.take_done(101).empty());
  EXPECT_FALSE(replacements.any_new(workers, has_none)) << "it is not back";
  record.is_healable = lockstep::shm::kIsHealable;
  EXPECT_EQ(replacements.take_done(102).size(), 1U);
  EXPECT_TRUE(replacements.any_new(workers, has_none));
  EXPECT_FALSE(replacements.any_new(workers, has_handler));
  record.committed_step = 8;
  EXPECT_TRUE(replacements.any_new(workers, has_none)) << "it may be about to ask for the first time";
  record.committed_step = 9;
  EXPECT_FALSE(replacements.any_new(workers, has_none));
  record.committed_step = 7;
  workers[1].ended = true;
  EXPECT_FALSE(replacements.any_new(workers, has_none));
}

}  // namespace
