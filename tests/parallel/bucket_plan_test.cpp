#include "lockstep/parallel/ddp/bucket_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace lockstep {
namespace {

using Members = std::vector<std::vector<size_t>>;

Members members(const BucketPlan& plan) {
  Members result;
  for (const auto& bucket : plan.buckets) result.push_back(bucket.parameters);
  return result;
}

TEST(BucketPlanTest, FillsBackwardsWithASmallFirstBucket) {
  const std::vector<GradientSpec> specs(5, {100, 0});
  EXPECT_EQ(members(plan_buckets(specs, reverse_order(5), {1, 200})), (Members{{4}, {3, 2}, {1, 0}}));
}

TEST(BucketPlanTest, ABucketMayExceedItsCapButHoldsOneKind) {
  const std::vector<GradientSpec> specs{{10, 0}, {1000, 1}, {10, 0}, {10, 1}};
  EXPECT_EQ(members(plan_buckets(specs, reverse_order(4), {500})), (Members{{3, 1}, {2, 0}}));
}

TEST(BucketPlanTest, EveryKindCountsItsOwnCapsAndTheLastOneIsRepeated) {
  const std::vector<GradientSpec> specs(8, {64, 0});
  EXPECT_EQ(members(plan_buckets(specs, {0, 1, 2, 3, 4, 5, 6, 7}, {64, 192, 128})),
            (Members{{0}, {1, 2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(members(plan_buckets({{64, 0}, {64, 1}, {64, 0}, {64, 1}}, {0, 1, 2, 3}, {64, 128})),
            (Members{{0}, {1}, {2}, {3}}));
}

TEST(BucketPlanTest, OffsetsAreAlignedAndDisjoint) {
  const BucketPlan plan = plan_buckets({{1, 0}, {64, 0}, {65, 0}, {0, 0}}, {0, 1, 2, 3}, {10000});
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_EQ(plan.buckets[0].offsets, (std::vector<size_t>{0, 64, 128, 256}));
  EXPECT_EQ(plan.buckets[0].bytes, 256u);
}

TEST(BucketPlanTest, EveryParameterIsInExactlyOneBucketOfItsKind) {
  std::minstd_rand generator(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<GradientSpec> specs(generator() % 60);
    for (auto& spec : specs) spec = {generator() % 5000, static_cast<int>(generator() % 3)};
    const BucketPlan plan =
        plan_buckets(specs, reverse_order(specs.size()), {generator() % 3000, generator() % 20000});
    std::set<size_t> seen;
    for (const auto& bucket : plan.buckets) {
      ASSERT_FALSE(bucket.parameters.empty());
      for (const size_t p : bucket.parameters) {
        EXPECT_TRUE(seen.insert(p).second);
        EXPECT_EQ(specs[p].dtype, specs[bucket.parameters[0]].dtype);
      }
    }
    EXPECT_EQ(seen.size(), specs.size());
  }
}

TEST(BucketPlanTest, WithoutParametersThereAreNoBuckets) {
  EXPECT_TRUE(plan_buckets({}, {}, {1}).buckets.empty());
}

}  // namespace
}  // namespace lockstep
