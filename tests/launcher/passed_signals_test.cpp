#include "launcher/run/passed_signals.h"

#include <gtest/gtest.h>

#include <csignal>
#include <vector>

namespace {

using lockstep::launcher::PassedSignals;
using Signals = std::vector<int>;

TEST(PassedSignals, WaitEachForItself) {
  PassedSignals passed;
  EXPECT_TRUE(passed.add(SIGUSR1));
  EXPECT_TRUE(passed.add(SIGUSR2));
  const auto without_handler = [](int waits_for) { return [=](int signal) { return signal == waits_for; }; };
  EXPECT_EQ(passed.take_due(without_handler(SIGUSR2)), Signals{SIGUSR1});
  EXPECT_FALSE(passed.waits(SIGUSR1));
  EXPECT_TRUE(passed.waits(SIGUSR2));
  EXPECT_EQ(passed.take_due(without_handler(0)), Signals{SIGUSR2});
  EXPECT_FALSE(passed.any_wait());
}

TEST(PassedSignals, AreOneWhileTheyWait) {
  PassedSignals passed;
  EXPECT_TRUE(passed.add(SIGUSR1));
  EXPECT_FALSE(passed.add(SIGUSR1));
  EXPECT_EQ(passed.take_due([](int) { return false; }), Signals{SIGUSR1});
  EXPECT_TRUE(passed.add(SIGUSR1)) << "it comes again";
}

TEST(PassedSignals, HaveEndedARankOnceTheyWerePassedOn) {
  PassedSignals passed;
  passed.add(SIGUSR1);
  EXPECT_FALSE(passed.have_ended(SIGUSR1)) << "somebody else has sent it";
  passed.take_due([](int) { return false; });
  EXPECT_TRUE(passed.have_ended(SIGUSR1));
  EXPECT_FALSE(passed.have_ended(SIGUSR2));
  EXPECT_FALSE(passed.have_ended(SIGUSR1 << 8)) << "an exit code";
}

TEST(PassedSignals, AreAnsweredByAnExitCode) {
  const int stopped = (128 + SIGUSR1) << 8;
  PassedSignals passed;
  passed.add(SIGUSR1);
  EXPECT_EQ(passed.answered_by(stopped), 0) << "it was not passed on yet";
  passed.take_due([](int) { return false; });
  EXPECT_EQ(passed.answered_by(stopped), SIGUSR1);
  for (const int other : {SIGUSR1, 0, 1 << 8, 75 << 8, (128 + SIGUSR2) << 8, (128 + SIGTERM) << 8})
    EXPECT_EQ(passed.answered_by(other), 0) << other;
}

}  // namespace
