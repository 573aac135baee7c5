// The states of a pass, the order in which passes end, and what follows from missing gradients: without
// ranks.
#include <gtest/gtest.h>

#include "lockstep/parallel/pass/open_passes.h"
#include "lockstep/parallel/pass/pass.h"
#include "lockstep/parallel/pass/pass_report.h"

namespace lockstep {
namespace {

PassState after(PassState state, std::initializer_list<PassEvent> events) {
  for (const PassEvent event : events) state = next_state(state, event);
  return state;
}

TEST(PassTest, AGradientAloneBeginsAPassOnceAfterASynchronisedForward) {
  using enum PassEvent;
  EXPECT_EQ(after(PassState::idle, {synchronised_forward, gradient}), PassState::open);
  EXPECT_EQ(after(PassState::idle, {synchronised_forward, gradient, end, gradient}), PassState::idle);
  EXPECT_EQ(after(PassState::idle, {synchronised_forward, local_forward, gradient}), PassState::idle);
  EXPECT_EQ(after(PassState::idle, {gradient}), PassState::idle);
}

TEST(PassTest, AnOutputBeginsAPassWheneverABackwardReachesIt) {
  using enum PassEvent;
  EXPECT_EQ(after(PassState::idle, {output}), PassState::open);
  EXPECT_EQ(after(PassState::idle, {synchronised_forward, output, end, output}), PassState::open);
}

TEST(PassTest, AForwardInsideABackwardChangesNothing) {
  using enum PassEvent;
  for (const PassEvent event : {synchronised_forward, local_forward, failed_forward, output, gradient}) {
    EXPECT_EQ(after(PassState::open, {event}), PassState::open);
  }
}

TEST(PassTest, WhatAnExceptionLeftStaysUntilItIsSettled) {
  using enum PassEvent;
  const auto torn = after(PassState::idle, {synchronised_forward, output, exception});
  const auto absent = after(PassState::idle, {synchronised_forward, failed_forward});
  EXPECT_EQ(torn, PassState::torn);
  EXPECT_EQ(absent, PassState::absent);
  for (const PassEvent event : {synchronised_forward, local_forward, gradient, output, exception}) {
    EXPECT_EQ(after(torn, {event}), torn);
    EXPECT_EQ(after(absent, {event}), absent);
  }
  EXPECT_EQ(after(torn, {recovery}), PassState::idle);
  EXPECT_EQ(after(absent, {recovery}), PassState::idle);
}

using Outcome = PassVerdict::Outcome;

TEST(PassReportTest, MissingGradientsAreAnErrorUnlessTheyAreAllowed) {
  const PassVerdict strict = decide({"a110", "a101"}, /*allows_missing=*/false);
  EXPECT_EQ(strict.outcome, Outcome::refused);
  EXPECT_EQ(describe_missing(strict, {"a", "b", "c"}), "b (rank 1); c (rank 0)");
  EXPECT_EQ(decide({"a110", "a101"}, true).outcome, Outcome::averaged);
  EXPECT_EQ(decide({"a11", "a11"}, false).outcome, Outcome::averaged);
}

TEST(PassReportTest, AParameterIsUsedWhereAnyRankHasAGradientSinceTheLastPass) {
  const PassVerdict verdict = decide({"a10e0", "a0000"}, true);
  EXPECT_EQ(verdict.is_used, (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(decide({"a1e", "a1e"}, false).outcome, Outcome::refused);  // not in this backward
}

TEST(PassReportTest, RanksThatHaveJoinedMissNothing) {
  const PassVerdict verdict = decide({"j00", "a11"}, false);
  EXPECT_EQ(verdict.outcome, Outcome::averaged);
  EXPECT_EQ(verdict.is_used, (std::vector<bool>{true, true}));
}

TEST(PassReportTest, ARankThatFailedSpoilsThePassForAll) {
  const PassVerdict verdict = decide({"a1", "f0", "n0", "j0"}, true);
  EXPECT_EQ(verdict.outcome, Outcome::failed);
  EXPECT_EQ(describe_ranks(verdict.failed_ranks), "1, 2");
  EXPECT_EQ(decide({"f1", "f0"}, true).outcome, Outcome::failed);
  EXPECT_EQ(decide({"n0", "f0"}, true).outcome, Outcome::failed);
}

TEST(PassReportTest, WhereNoForwardEndedWellNothingHasHappened) {
  EXPECT_EQ(decide({"n0", "ne"}, false).outcome, Outcome::untouched);
}

TEST(PassReportTest, AnErrorNamesTwentyParameters) {
  const std::string report = "a" + std::string(23, '0');
  const std::vector<std::string> names(23, "p");
  const std::string text = describe_missing(decide({report}, false), names);
  EXPECT_EQ(text.substr(0, 23), "p (rank 0); p (rank 0);");
  EXPECT_EQ(text.substr(text.size() - 10), "and 3 more");
}

TEST(OpenPassesTest, PassesOfOneBackwardEndInTheOrderOfConstruction) {
  OpenPasses passes;
  const auto life = std::make_shared<int>();
  const auto named = [](size_t address) { return reinterpret_cast<const Reducer*>(address); };
  const auto none = [](const Reducer&) {};
  passes.enter({named(8), 2, 7, life}, none);
  passes.enter({named(16), 1, 7, life}, none);
  passes.enter({named(24), 0, 9, life}, none);  // of another backward
  EXPECT_EQ(passes.take_first(7), named(16));
  EXPECT_EQ(passes.take_first(7), named(8));
  EXPECT_EQ(passes.take_first(7), nullptr);
  passes.leave(named(24));
  EXPECT_EQ(passes.take_first(9), nullptr);
}

TEST(OpenPassesTest, OnlyPassesUnderWayInThisThreadAreChecked) {
  OpenPasses passes;
  const auto life = std::make_shared<int>();
  const auto named = [](size_t address) { return reinterpret_cast<const Reducer*>(address); };
  int checked = 0;
  const auto check = [&](const Reducer&) { ++checked; };
  passes.enter({named(8), 0, 1, life}, check);
  passes.enter({named(16), 1, 2, std::make_shared<int>()}, check);  // gone at once
  std::thread([&] { passes.enter({named(24), 2, 3, life}, check); }).join();
  EXPECT_EQ(checked, 1);
  passes.enter({named(32), 3, 1, life}, check);
  EXPECT_EQ(checked, 2);
}

}  // namespace
}  // namespace lockstep
