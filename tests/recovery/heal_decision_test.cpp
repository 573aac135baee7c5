#include "lockstep/recovery/heal_decision.h"

#include <gtest/gtest.h>

#include <tuple>

namespace {

using lockstep::detail::decide_heal;
using lockstep::detail::find_lacking_group;
using lockstep::detail::HealDecision;
using lockstep::detail::HealGroup;
using lockstep::detail::HealReport;
using enum HealReport::Holds;

constexpr HealReport kNew{.is_new = true};

void expect(const std::vector<HealReport>& reports, int donor, int64_t steps) {
  const HealDecision decision = decide_heal(reports);
  EXPECT_EQ(decision.donor, donor);
  EXPECT_EQ(decision.steps, steps);
}

TEST(HealDecision, AStepThatNobodyHasWrittenIsRepeated) {
  expect({{.steps = 5}, kNew, {.steps = 5}}, 0, 5);
  expect({kNew, {.steps = 5}, {.steps = 5}}, 1, 5);
}

TEST(HealDecision, AStepThatOneRankHasEndedHasEnded) {
  expect({{.steps = 5}, kNew, {.steps = 5, .holds = after}}, 2, 6);
  expect({{.steps = 5, .holds = after}, kNew, {.steps = 5, .holds = neither}}, 0, 6);
  expect({{.steps = 5, .holds = after}, {.steps = 6}, kNew}, 0, 6);
  expect({{.steps = 5, .holds = neither}, {.steps = 6}, kNew}, 1, 6);
}

TEST(HealDecision, HalfWrittenWeightsAreReplaced) {
  expect({{.steps = 5, .holds = neither}, kNew, {.steps = 5}}, 2, 5);
}

TEST(HealDecision, NobodyHasWeights) {
  expect({{.steps = 5, .holds = neither}, kNew, {.steps = 5, .holds = neither}}, -1, 5);
  // One that is further has written on: the others' older weights are of no use.
  expect({{.steps = 6, .holds = neither}, kNew, {.steps = 5}}, -1, 6);
}

TEST(HealDecision, TheFirstStep) { expect({kNew, kNew, {}}, 2, 0); }

TEST(HealDecision, EachRankMayHaveOtherGroups) {
  const HealGroup world{"world", {0, 1, 2}}, even{"world/1", {0, 2}};
  EXPECT_FALSE(find_lacking_group({{world, even}, {world}, {even, world}}));
  const auto lacking = find_lacking_group({{world, even}, {world}, {world}});
  ASSERT_TRUE(lacking);
  EXPECT_EQ(std::tuple(lacking->rank, lacking->other, lacking->group.name), std::tuple(2, 0, "world/1"));
  EXPECT_EQ(find_lacking_group({{world}, {world}, {world, even}})->rank, 0);
}

}  // namespace
