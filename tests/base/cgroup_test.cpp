#include "lockstep/base/cgroup.h"

#include <gtest/gtest.h>

namespace lockstep {

TEST(CgroupTest, ReadsTheRoomThatIsLeft) {
  const std::string v2 = "anon 1000\nfile 900\ninactive_file 300\nactive_file 100\nshmem 500\n";
  EXPECT_EQ(room_in_cgroup("5000\n", "2000\n", v2), 5000u - 2000u + 400u);
  EXPECT_EQ(room_in_cgroup("5000\n", "5600\n", ""), 0u);  // v2 lets a group stand above its limit for a while
  EXPECT_EQ(room_in_cgroup("max\n", "2000\n", v2), std::nullopt);
  EXPECT_EQ(room_in_cgroup("", "", ""), std::nullopt);
  // v1: its own figures, then those with the groups below.
  const std::string v1 = "inactive_file 1\nactive_file 2\ntotal_inactive_file 30\ntotal_active_file 40\n";
  EXPECT_EQ(room_in_cgroup("1000\n", "600\n", v1), 1000u - 600u + 70u);
  EXPECT_EQ(room_in_cgroup("9223372036854771712\n", "600\n", v1), std::nullopt);
}

TEST(CgroupTest, TheMachineHasSomeMemory) {
  const auto room = free_memory();
  ASSERT_TRUE(room.has_value());
  EXPECT_GT(*room, size_t{1} << 20);
  EXPECT_LT(*room, size_t{1} << 50);
}

}  // namespace lockstep
