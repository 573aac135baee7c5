// Signals that ask a rank to save its work and end.
#pragma once

#include <csignal>

namespace lockstep {

/// While one lives, SIGTERM, SIGUSR1 (what SLURM's --signal is often set to) and the first SIGINT do not end the
/// process but are noted, for the program to save its work and end. A second SIGINT kills, and so does SIGTERM
/// when it comes from lockrun because another rank has failed: then there is nobody left to agree with.
/// A signal that is ignored, or has a handler already, is left alone.
///
/// Process-wide, and may be nested; signal handlers are those of before when the last one dies. Thread-safe.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
};

/// For a program that ends because it was asked to: the signals stay caught, without effect, after the last StopSignals has died.
/// Ranks agree on a stop, so one may have saved its work before its own signal comes, which must not change its exit code. A
/// second SIGINT kills, and so does the SIGTERM of a failure. Undone by the next StopSignals. Call it while one lives.
/// Thread-safe.
void keep_stop_signals_caught();

/// While one lives, SIGTERM waits; it is delivered when the last one dies. For the short work of writing down how a
/// run has ended, which lockrun would interrupt when another rank has failed too. A SIGTERM that is ignored, or has a
/// handler that is not StopSignals', is left alone. No StopSignals may begin or end meanwhile. Process-wide, and may be
/// nested. Thread-safe.
class HeldSigterm {
 public:
  HeldSigterm();
  ~HeldSigterm();
  HeldSigterm(const HeldSigterm&) = delete;
  HeldSigterm& operator=(const HeldSigterm&) = delete;
};

/// The first such signal that this process has received, or 0. It stays until the last StopSignals dies. One
/// load.
int stop_signal();

/// Its name: "SIGTERM", "SIGUSR1" or "SIGINT".
constexpr const char* stop_signal_name(int signal) {
  return signal == SIGINT ? "SIGINT" : signal == SIGUSR1 ? "SIGUSR1" : "SIGTERM";
}

namespace job {

/// A rank that exits with it is to be resumed later: for lockrun that is no failure (EX_TEMPFAIL of sysexits.h).
inline constexpr int kResumeCode = 75;

/// A rank that exits with it has done its work, but could not save a checkpoint (EX_IOERR): a failure, which lockrun does not
/// answer by a restart, because the disk would be as full as before.
inline constexpr int kSaveFailedCode = 74;

/// What lockrun's SIGTERM carries (sigqueue) when it ends a rank because of a failure.
inline constexpr int kPeerHasFailed = 0x6c6b;

}  // namespace job

/// What a program exits with that `signal` has stopped and that has saved its work: 130 after SIGINT, as shells
/// expect, otherwise kResumeCode.
constexpr int stop_exit_code(int signal) { return signal == SIGINT ? 130 : job::kResumeCode; }

}  // namespace lockstep
