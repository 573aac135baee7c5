// The states of a pass, without ranks.
#include "lockstep/parallel/ddp/pass.h"

#include <gtest/gtest.h>

#include <memory>

namespace lockstep {
namespace {

PassState after(PassState state, std::initializer_list<PassEvent> events) {
  for (const PassEvent event : events) state = next_state(state, event);
  return state;
}

TEST(PassTest, AGradientAloneBeginsAPassOnceAfterASynchronizedForward) {
  using enum PassEvent;
  EXPECT_EQ(after(PassState::idle, {synchronized_forward, gradient}), PassState::open);
  EXPECT_EQ(after(PassState::idle, {synchronized_forward, gradient, end, gradient}), PassState::idle);
  EXPECT_EQ(after(PassState::idle, {synchronized_forward, local_forward, gradient}), PassState::idle);
  EXPECT_EQ(after(PassState::idle, {gradient}), PassState::idle);
}

TEST(PassTest, AnOutputBeginsAPassWheneverABackwardReachesIt) {
  using enum PassEvent;
  EXPECT_EQ(after(PassState::idle, {output}), PassState::open);
  EXPECT_EQ(after(PassState::idle, {synchronized_forward, output, end, output}), PassState::open);
}

TEST(PassTest, AForwardInsideABackwardChangesNothing) {
  using enum PassEvent;
  for (const PassEvent event : {synchronized_forward, local_forward, failed_forward, output, gradient}) {
    EXPECT_EQ(after(PassState::open, {event}), PassState::open);
  }
}

TEST(PassTest, WhatAnExceptionLeftStaysUntilItIsSettled) {
  using enum PassEvent;
  const auto torn = after(PassState::idle, {synchronized_forward, output, exception});
  const auto absent = after(PassState::idle, {synchronized_forward, failed_forward});
  EXPECT_EQ(torn, PassState::torn);
  EXPECT_EQ(absent, PassState::absent);
  for (const PassEvent event : {synchronized_forward, local_forward, gradient, output, exception}) {
    EXPECT_EQ(after(torn, {event}), torn);
    EXPECT_EQ(after(absent, {event}), absent);
  }
  EXPECT_EQ(after(torn, {recovery}), PassState::idle);
  EXPECT_EQ(after(absent, {recovery}), PassState::idle);
}

TEST(PassTest, ABackwardThatHasGoneWithoutAnEndIsTorn) {
  auto backward = std::make_shared<int>();
  Pass pass{.state = PassState::open, .backward = backward};
  EXPECT_TRUE(pass.averages());
  EXPECT_FALSE(pass.is_torn());
  backward.reset();
  EXPECT_FALSE(pass.averages());
  EXPECT_TRUE(pass.is_torn());
  pass.take(PassEvent::exception);
  EXPECT_EQ(pass.state, PassState::torn);
  EXPECT_TRUE(pass.is_torn());
}

}  // namespace
}  // namespace lockstep
