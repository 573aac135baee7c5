// The states of the slices that FusedZeroRedundancyOptimizer averages, without ranks.
#include "lockstep/optim/gradient_slices.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::detail {
namespace {

const std::vector<std::string> kStates = {"fresh",          "reduced",   "joined",
                                          "joined_reduced", "shadowing", "orphaned"};
const std::vector<std::string> kEvents = {"pass_begins", "pass_ends", "zeroed",
                                          "join",        "leave",     "optimizer_gone"};

std::vector<SliceState> all_states() {
  std::vector<SliceState> states;
  for (int state = 0; state < kSliceStates; ++state) states.push_back(static_cast<SliceState>(state));
  return states;
}

SliceState after(SliceState state, std::initializer_list<SliceEvent> events) {
  for (const SliceEvent event : events) state = next_state(state, event);
  return state;
}

// Each line: a state, an event that changes it, and what it becomes. Every pair that is missing changes nothing.
TEST(GradientSlicesTest, TheWholeTable) {
  std::string changes;
  for (size_t state = 0; state < kStates.size(); ++state) {
    for (size_t event = 0; event < kEvents.size(); ++event) {
      const auto next =
          static_cast<size_t>(next_state(static_cast<SliceState>(state), static_cast<SliceEvent>(event)));
      if (next != state) changes += kStates[state] + " " + kEvents[event] + " " + kStates[next] + "\n";
    }
  }
  EXPECT_EQ(changes,
            "fresh pass_ends reduced\n"
            "fresh join joined\n"
            "fresh optimizer_gone orphaned\n"
            "reduced zeroed fresh\n"
            "reduced join joined_reduced\n"
            "reduced optimizer_gone orphaned\n"
            "joined pass_begins shadowing\n"
            "joined pass_ends shadowing\n"
            "joined leave fresh\n"
            "joined optimizer_gone orphaned\n"
            "joined_reduced pass_begins shadowing\n"
            "joined_reduced pass_ends shadowing\n"
            "joined_reduced zeroed joined\n"
            "joined_reduced leave reduced\n"
            "joined_reduced optimizer_gone orphaned\n"
            "shadowing leave fresh\n"
            "shadowing optimizer_gone orphaned\n");
}

TEST(GradientSlicesTest, OnlyASecondPassIsRefused) {
  using enum SliceEvent;
  for (const SliceState state : all_states()) EXPECT_EQ(refuses_pass(state), state == SliceState::reduced);
  EXPECT_TRUE(refuses_pass(after(SliceState::fresh, {pass_begins, pass_ends})));
  EXPECT_FALSE(refuses_pass(after(SliceState::fresh, {pass_begins, pass_ends, zeroed})));
  EXPECT_FALSE(refuses_pass(after(SliceState::fresh, {pass_begins})));  // an exception ended that pass
}

TEST(GradientSlicesTest, AJoinWithoutOthersPassesLeavesWhatWas) {
  using enum SliceEvent;
  for (const SliceState state : {SliceState::fresh, SliceState::reduced})
    EXPECT_EQ(after(state, {join, leave}), state);
  EXPECT_EQ(after(SliceState::reduced, {join, zeroed, leave}), SliceState::fresh);
}

TEST(GradientSlicesTest, AJoinedRankTakesPartInAnyNumberOfPasses) {
  using enum SliceEvent;
  for (const SliceState state : {SliceState::fresh, SliceState::reduced}) {
    const SliceState shadow =
        after(state, {join, pass_begins, pass_ends, pass_begins, pass_ends, zeroed, join});
    EXPECT_EQ(shadow, SliceState::shadowing);
    EXPECT_FALSE(refuses_pass(shadow));
    EXPECT_EQ(after(shadow, {leave, pass_begins, pass_ends}), SliceState::reduced);
  }
}

TEST(GradientSlicesTest, ZerosAndDroppedGradientsMakeTheSlicesFresh) {
  const at::Tensor parameter = at::ones({3}).requires_grad_();
  for (const bool is_dropped : {true, false}) {
    GradientSlices slices{.parameters = {parameter}, .state = SliceState::reduced};
    parameter.mutable_grad() = at::ones({3});
    note_zeroed_gradients(slices);
    EXPECT_EQ(slices.state, SliceState::reduced);
    parameter.mutable_grad() = is_dropped ? at::Tensor() : at::zeros({3});
    note_zeroed_gradients(slices);
    EXPECT_EQ(slices.state, SliceState::fresh);
  }
}

}  // namespace
}  // namespace lockstep::detail
