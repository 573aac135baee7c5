#include "launcher/process/signals.h"

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

const std::vector<int> kEnding = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};

TEST(SignalsTest, TheFirstOfTheListAsksTheRanksToEnd) {
  for (const int signal : kEnding) EXPECT_EQ(action_of(signal, kEnding, false, {}), SignalAction::end);
}

TEST(SignalsTest, OnlyASecondSigintKillsRanksThatAreSaving) {
  EXPECT_EQ(action_of(SIGINT, kEnding, true, {SIGINT}), SignalAction::kill);
  EXPECT_EQ(action_of(SIGINT, kEnding, true, {SIGTERM}), SignalAction::note);
  EXPECT_EQ(action_of(SIGTERM, kEnding, true, {SIGTERM}), SignalAction::note);  // Kubernetes
  EXPECT_EQ(action_of(SIGHUP, kEnding, true, {SIGTERM}), SignalAction::note);   // systemd
  EXPECT_EQ(action_of(SIGTERM, kEnding, true, {SIGINT}), SignalAction::note);
}

TEST(SignalsTest, OtherSignalsArePassedOnUnlessTheyAreInTheList) {
  EXPECT_EQ(action_of(SIGUSR1, kEnding, false, {}), SignalAction::pass_on);
  EXPECT_EQ(action_of(SIGUSR1, kEnding, true, {SIGTERM}), SignalAction::pass_on);
  EXPECT_EQ(action_of(SIGUSR1, {SIGUSR1}, false, {}), SignalAction::end);
  EXPECT_EQ(action_of(SIGTSTP, kEnding, false, {}), SignalAction::suspend);
}

TEST(SignalsTest, ExitCodeOfASignalIs128PlusItsNumber) {
  EXPECT_EQ(exit_code(3 << 8), 3);
  EXPECT_EQ(exit_code(SIGKILL), 137);
}

}  // namespace
}  // namespace lockstep::launcher
