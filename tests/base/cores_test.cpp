#include "lockstep/base/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

namespace lockstep {

TEST(CoresTest, ReadsTheCpuQuota) {
  EXPECT_EQ(cores_of_cpu_max("200000 100000\n"), 2);
  EXPECT_EQ(cores_of_cpu_max("50000 100000\n"), 0.5);
  EXPECT_EQ(cores_of_cpu_max("max 100000\n"), std::nullopt);
  EXPECT_EQ(cores_of_cpu_max(""), std::nullopt);
}

TEST(CoresTest, FollowsTheAffinityMask) {
  cpu_set_t before, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_LE(usable_cores(), CPU_COUNT(&before));
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_cores(), 1);
  ::sched_setaffinity(0, sizeof before, &before);
}

}  // namespace lockstep
