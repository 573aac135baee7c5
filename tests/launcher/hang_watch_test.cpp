#include "launcher/watch/hang_watch.h"

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

shm::RankInfo at(uint64_t operations, bool waits, shm::RankState state = shm::RankState::attached) {
  shm::RankInfo info;
  info.state = state;
  info.operations = operations;
  info.waits = waits;
  if (operations > 0) info.last_operation = "all_reduce of 8 bytes";
  return info;
}
shm::RankInfo waiting(uint64_t operations) { return at(operations, true); }
shm::RankInfo busy(uint64_t operations) { return at(operations, false); }
const shm::RankInfo kAbsent = at(0, false, shm::RankState::absent),
                    kLeft = at(1, false, shm::RankState::left);

/// What is told of a job that stands like this for 61 s; "" for nothing.
std::string told(const std::vector<shm::RankInfo>& ranks, bool is_all = true) {
  HangWatch watch(60, 4, is_all);
  EXPECT_FALSE(watch.look(ranks, 100));
  EXPECT_FALSE(watch.look(ranks, 159));
  const auto hang = watch.look(ranks, 161);
  return hang ? hang->text : "";
}

TEST(HangWatchTest, NamesTheRankThatOthersWaitFor) {
  EXPECT_EQ(told({waiting(3), busy(2)}),
            "no collective was started for 61 s: rank 4 waits in the 3rd operation (all_reduce of 8 bytes) "
            "for rank "
            "5, which has started 2 (the last: all_reduce of 8 bytes)");
  EXPECT_EQ(told({waiting(3), busy(0), waiting(3), busy(0), busy(1)}),
            "no collective was started for 61 s: ranks 4, 6 wait in the 3rd operation (all_reduce of 8 "
            "bytes) for rank "
            "8, which has started 1 (the last: all_reduce of 8 bytes); and for ranks 5, 7, which have "
            "started none");
}

TEST(HangWatchTest, IsToldOnceUntilThereIsProgress) {
  HangWatch watch(60, 4, true);
  watch.look({waiting(3), busy(2)}, 100);
  const auto hang = watch.look({waiting(3), busy(2)}, 161);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->late, std::vector<int>{1});
  EXPECT_FALSE(watch.look({waiting(3), busy(2)}, 300)) << "told twice";
  EXPECT_FALSE(watch.look({busy(3), busy(3)}, 301));
  EXPECT_FALSE(watch.look({waiting(4), busy(3)}, 302));
  EXPECT_TRUE(watch.look({waiting(4), busy(3)}, 363)) << "a new hang after progress";
}

TEST(HangWatchTest, SeesRanksThatWaitForEachOtherInInit) {
  EXPECT_EQ(told({waiting(0), waiting(0)}),
            "no collective was started for 61 s and all ranks wait: ranks 4, 5 in init()");
  EXPECT_EQ(told({busy(0), busy(0)}), "") << "init() has returned";
}

TEST(HangWatchTest, NamesRanksThatHaveNotCalledInit) {
  EXPECT_EQ(told({busy(0), kAbsent, kAbsent}),
            "rank 4 waits in init() for ranks 5, 6, which have not called it for 61 s");
  EXPECT_EQ(told({busy(0), busy(0), kAbsent}),
            "ranks 4, 5 wait in init() for rank 6, which has not called it for 61 s");
  EXPECT_EQ(told({kAbsent, kAbsent}), "") << "a program may do without Lockstep";
  HangWatch watch(60, 0, true);
  watch.look({busy(0), kAbsent, kAbsent}, 100);
  EXPECT_FALSE(watch.look({busy(0), busy(0), kAbsent}, 161)) << "one more has come";
}

TEST(HangWatchTest, NamesRanksThatWaitForEachOther) {
  EXPECT_EQ(
      told({waiting(3), waiting(2)}),
      "no collective was started for 61 s and all ranks wait: rank 4 in the 3rd operation (all_reduce of 8 "
      "bytes); rank 5 in the 2nd operation (all_reduce of 8 bytes)");
  EXPECT_EQ(told({waiting(11), waiting(11)}),
            "no collective was started for 61 s and all ranks wait: ranks 4, 5 in the 11th operation "
            "(all_reduce of 8 "
            "bytes)");
  EXPECT_EQ(told({waiting(3), waiting(3)}, /*is_all=*/false), "") << "a rank elsewhere may be late";
}

TEST(HangWatchTest, ALongComputationIsNoHang) {
  EXPECT_EQ(told({busy(3), busy(3)}), "") << "nobody waits";
  EXPECT_EQ(told({busy(30), busy(3)}), "") << "nobody waits, though one is in more groups";
  EXPECT_EQ(told({waiting(3), busy(30)}), "") << "nobody knows for whom";
  EXPECT_EQ(told({busy(3), kLeft}), "");
  HangWatch watch(60, 0, true);
  watch.look({busy(3), busy(3)}, 100);
  EXPECT_FALSE(watch.look({waiting(3), busy(2)}, 101));
  EXPECT_FALSE(watch.look({busy(3), busy(2)}, 161)) << "slept for a moment";
  EXPECT_FALSE(watch.look({waiting(3), busy(2)}, 162));
  EXPECT_TRUE(watch.look({waiting(3), busy(2)}, 163));
}

TEST(HangWatchTest, ASuspendedJobIsForgiven) {
  HangWatch watch(60, 0, true);
  watch.look({waiting(3), busy(2)}, 100);
  watch.forgive(1000);
  EXPECT_FALSE(watch.look({waiting(3), busy(2)}, 1001));
  EXPECT_TRUE(watch.look({waiting(3), busy(2)}, 1061));
}

}  // namespace
}  // namespace lockstep::launcher
