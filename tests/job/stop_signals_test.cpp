#include "lockstep/job/stop_signals.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

namespace lockstep {
namespace {

/// The status, as from waitpid(), of a fork that runs `body` and exits with 7.
int status_of(const std::function<void()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    body();
    ::_exit(7);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

bool went_on(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 7; }
bool was_killed(int status, int signal) { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }

void expect_in_child(bool condition) {
  if (!condition) ::_exit(1);
}

TEST(StopSignals, AreNotedAndTheFirstOneCounts) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT}) {
    EXPECT_TRUE(went_on(status_of([signal] {
      const StopSignals signals;
      expect_in_child(stop_signal() == 0);
      ::raise(signal);
      expect_in_child(stop_signal() == signal);
      ::raise(SIGTERM);
      ::raise(SIGUSR1);
      expect_in_child(stop_signal() == signal);
    }))) << signal;
  }
  EXPECT_EQ(stop_exit_code(SIGTERM), 75);
  EXPECT_EQ(stop_exit_code(SIGUSR1), 75);
  EXPECT_EQ(stop_exit_code(SIGINT), 130);
}

TEST(StopSignals, ASecondInterruptKills) {
  EXPECT_TRUE(was_killed(status_of([] {
                           const StopSignals signals;
                           ::raise(SIGINT);
                           ::raise(SIGINT);
                         }),
                         SIGINT));
  EXPECT_TRUE(went_on(status_of([] {
    const StopSignals signals;
    ::raise(SIGTERM);
    ::raise(SIGINT);
  })));
}

TEST(StopSignals, TheLauncherKillsARankWhosePeerHasFailed) {
  EXPECT_TRUE(was_killed(status_of([] {
                           const StopSignals signals;
                           ::sigqueue(::getpid(), SIGTERM, {.sival_int = job::kPeerHasFailed});
                         }),
                         SIGTERM));
  EXPECT_TRUE(went_on(status_of([] {
    const StopSignals signals;
    ::sigqueue(::getpid(), SIGTERM, {.sival_int = 1});
  })));
}

TEST(StopSignals, EndWithTheLastOfThem) {
  EXPECT_TRUE(was_killed(status_of([] {
                           {
                             const StopSignals outer;
                             { const StopSignals inner; }
                             ::raise(SIGTERM);
                             expect_in_child(stop_signal() == SIGTERM);
                           }
                           expect_in_child(stop_signal() == 0);
                           ::raise(SIGTERM);
                         }),
                         SIGTERM));
}

TEST(StopSignals, StayCaughtInAProgramThatIsAskedToEnd) {
  const auto stopped = [](const std::function<void()>& late) {
    return status_of([&late] {
      {
        const StopSignals signals;
        ::raise(SIGUSR1);
        keep_stop_signals_caught();
      }
      expect_in_child(stop_signal() == 0);
      late();
    });
  };
  EXPECT_TRUE(went_on(stopped([] {
    for (const int signal : {SIGTERM, SIGUSR1, SIGTERM, SIGINT}) ::raise(signal);
  })));
  EXPECT_TRUE(was_killed(stopped([] {
                           ::raise(SIGINT);
                           ::raise(SIGINT);
                         }),
                         SIGINT));
  EXPECT_TRUE(was_killed(stopped([] { ::sigqueue(::getpid(), SIGTERM, {.sival_int = job::kPeerHasFailed}); }),
                         SIGTERM));
  // The next training begins anew, and what was there before it is back behind it.
  EXPECT_TRUE(was_killed(stopped([] {
                           ::raise(SIGTERM);
                           {
                             const StopSignals signals;
                             expect_in_child(stop_signal() == 0);
                             ::raise(SIGTERM);
                             expect_in_child(stop_signal() == SIGTERM);
                           }
                           ::raise(SIGTERM);
                         }),
                         SIGTERM));
}

TEST(StopSignals, LeaveAloneWhatIsIgnoredOrHandled) {
  EXPECT_TRUE(went_on(status_of([] {
    ::signal(SIGTERM, SIG_IGN);
    static int handled = 0;
    ::signal(SIGUSR1, [](int) { ++handled; });
    const StopSignals signals;
    ::raise(SIGTERM);
    ::raise(SIGUSR1);
    expect_in_child(stop_signal() == 0 && handled == 1);
  })));
}

TEST(HeldSigterm, DeliversAtItsEndWhatCameMeanwhile) {
  for (const int value : {0, job::kPeerHasFailed}) {
    EXPECT_TRUE(was_killed(status_of([value] {
                             {
                               const HeldSigterm held;
                               const HeldSigterm nested;
                               ::sigqueue(::getpid(), SIGTERM, {.sival_int = value});
                             }
                             ::pause();
                           }),
                           SIGTERM))
        << value;
  }
  EXPECT_TRUE(went_on(status_of([] {
    const HeldSigterm held;
    ::raise(SIGTERM);
    ::_exit(7);  // it has not been delivered yet
  })));
  EXPECT_TRUE(went_on(status_of([] { const HeldSigterm held; })));
}

TEST(HeldSigterm, GivesItToStopSignals) {
  EXPECT_TRUE(went_on(status_of([] {
    const StopSignals signals;
    {
      const HeldSigterm held;
      ::raise(SIGTERM);
      expect_in_child(stop_signal() == 0);
    }
    expect_in_child(stop_signal() == SIGTERM);
  })));
  EXPECT_TRUE(was_killed(status_of([] {
                           const StopSignals signals;
                           {
                             const HeldSigterm held;
                             ::sigqueue(::getpid(), SIGTERM, {.sival_int = job::kPeerHasFailed});
                           }
                           ::pause();
                         }),
                         SIGTERM));
}

TEST(HeldSigterm, LeavesOtherHandlersAlone) {
  EXPECT_TRUE(went_on(status_of([] {
    ::signal(SIGTERM, [](int) { ::_exit(7); });
    const HeldSigterm held;
    ::raise(SIGTERM);
    ::_exit(1);
  })));
  EXPECT_TRUE(went_on(status_of([] {
    ::signal(SIGTERM, SIG_IGN);
    { const HeldSigterm held; }
    ::raise(SIGTERM);
  })));
}

}  // namespace
}  // namespace lockstep
