#include "launcher/process/restart_policy.h"

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

using Delay = std::optional<double>;

TEST(RestartPolicyTest, NoneWithoutPermission) {
  EXPECT_EQ(RestartPolicy(RestartRules{}).after_failure(5), std::nullopt);
}

TEST(RestartPolicyTest, FailuresInQuickSuccessionWaitLongerEachTime) {
  RestartPolicy policy({.most = 100, .delay = 1});
  std::vector<double> delays;
  double now = 100;
  for (int i = 0; i < 9; ++i) delays.push_back(policy.after_failure(now += 2).value());
  EXPECT_EQ(delays, (std::vector<double>{0, 1, 2, 4, 8, 16, 32, 60, 60}));
  EXPECT_EQ(policy.after_failure(now += 60), Delay(0));  // it had run for a while
  EXPECT_EQ(policy.after_failure(now += 59), Delay(1));
  EXPECT_EQ(policy.restarts(), 11);
}

TEST(RestartPolicyTest, WithoutADelayEachIsImmediate) {
  RestartPolicy policy({.most = 3});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(policy.after_failure(i), Delay(0));
  EXPECT_EQ(policy.after_failure(3), std::nullopt);
  EXPECT_EQ(policy.after_failure(1e9), std::nullopt);  // they are not given back
}

TEST(RestartPolicyTest, WhatOthersCountedCounts) {
  RestartPolicy policy({.most = 3, .delay = 1});
  policy.inherit(2, 100);
  policy.inherit(1, 100);
  EXPECT_EQ(policy.restarts(), 2);
  EXPECT_EQ(policy.after_failure(101), Delay(1));
  EXPECT_EQ(policy.after_failure(102), std::nullopt);
}

TEST(RestartPolicyTest, ARefillGivesRestartsBack) {
  RestartPolicy policy({.most = 2, .refill = 3600});
  EXPECT_TRUE(policy.after_failure(0));
  EXPECT_TRUE(policy.after_failure(1000));
  EXPECT_FALSE(policy.after_failure(3500));
  EXPECT_TRUE(policy.after_failure(3600));
  EXPECT_FALSE(policy.after_failure(4000));
  EXPECT_TRUE(policy.after_failure(4600));
}

}  // namespace
}  // namespace lockstep::launcher
