#include "launcher/watch/hang_watch.h"

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

shm::RankInfo at(uint64_t operations, shm::RankState state = shm::RankState::attached) {
  shm::RankInfo info;
  info.state = state;
  info.operations = operations;
  info.last_operation = "all_reduce of 8 bytes";
  return info;
}

TEST(HangWatchTest, NamesTheRankThatOthersWaitFor) {
  HangWatch watch(60, 4);
  EXPECT_FALSE(watch.look({at(3), at(2)}, 100));
  EXPECT_FALSE(watch.look({at(3), at(2)}, 159));
  const auto hang = watch.look({at(3), at(2)}, 161);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->late, std::vector<int>{1});
  EXPECT_EQ(hang->text,
            "no collective was started for 61 s and ranks wait for others: rank 5 is at its 2. (all_reduce "
            "of 8 bytes), "
            "while rank 4 is at its 3. (all_reduce of 8 bytes)");
  EXPECT_FALSE(watch.look({at(3), at(2)}, 300)) << "told twice";
  EXPECT_FALSE(watch.look({at(3), at(3)}, 301));
  EXPECT_FALSE(watch.look({at(4), at(3)}, 302));
  EXPECT_TRUE(watch.look({at(4), at(3)}, 363)) << "a new hang after progress";
}

TEST(HangWatchTest, ALongComputationIsNoHang) {
  HangWatch watch(60, 0);
  watch.look({at(3), at(3)}, 100);
  EXPECT_FALSE(watch.look({at(3), at(3)}, 1000)) << "nobody waits";
  HangWatch others(60, 0);
  others.look({at(3), at(1, shm::RankState::left), at(0, shm::RankState::absent)}, 100);
  EXPECT_FALSE(others.look({at(3), at(1, shm::RankState::left), at(0, shm::RankState::absent)}, 1000));
}

TEST(HangWatchTest, ASuspendedJobIsForgiven) {
  HangWatch watch(60, 0);
  watch.look({at(3), at(2)}, 100);
  watch.forgive(1000);
  EXPECT_FALSE(watch.look({at(3), at(2)}, 1001));
  EXPECT_TRUE(watch.look({at(3), at(2)}, 1061));
}

}  // namespace
}  // namespace lockstep::launcher
