#include "launcher/placement.h"

#include <gtest/gtest.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

const std::vector<CoreGroup> kTwoNodes = {{{0, 1, 2, 3}}, {{4, 5, 6, 7}}};

TEST(PlacementTest, DealsGroupsInBlocks) {
  EXPECT_EQ(deal_cores(kTwoNodes, 2, false), (std::vector<CpuSet>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  const auto four = deal_cores(kTwoNodes, 4, false);
  EXPECT_EQ(four[0], four[1]);
  EXPECT_EQ(four[2], (CpuSet{4, 5, 6, 7}));
  EXPECT_EQ(deal_cores(kTwoNodes, 1, false)[0], (CpuSet{0, 1, 2, 3}));
}

TEST(PlacementTest, ExclusiveCoresAreDisjoint) {
  EXPECT_EQ(deal_cores(kTwoNodes, 4, true), (std::vector<CpuSet>{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(deal_cores(kTwoNodes, 3, true), (std::vector<CpuSet>{{0, 1}, {2, 3}, {4, 5, 6, 7}}));
  EXPECT_THROW(deal_cores(kTwoNodes, 9, true), ValueError);
}

TEST(PlacementTest, ThisMachineCanBeRead) {
  for (const Binding binding : {Binding::node, Binding::socket, Binding::core_complex}) {
    for (const CpuSet& cores : place_ranks(binding, 2)) EXPECT_FALSE(cores.empty());
  }
  EXPECT_TRUE(place_ranks(Binding::none, 2).empty());
}

TEST(PlacementTest, ListsAreShort) { EXPECT_EQ(core_list({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11"); }

}  // namespace
}  // namespace lockstep::launcher
