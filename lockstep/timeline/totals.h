// How long this process has spent on what, added up while it runs, for those who log it. Without a file, and apart
// from whether a timeline is kept.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "lockstep/timeline/timeline.h"

namespace lockstep::timeline {

/// Seconds. A span inside another counts for the inner one alone, so they never overlap: backward is without the
/// waits in it.
struct Totals {
  double data = 0, forward = 0, backward = 0, optimizer = 0;
  double communication = 0;  ///< blocked in collectives, and in waits for them
};

/// While one lives, what Counted measures is added up. Thread-safe.
class [[nodiscard]] KeepTotals {
 public:
  KeepTotals();
  KeepTotals(const KeepTotals&) = delete;
  KeepTotals& operator=(const KeepTotals&) = delete;
  ~KeepTotals();
};

/// Since the process began. Thread-safe.
Totals totals();

/// Adds its own lifetime to the totals, where they are kept; otherwise it costs one load. Kind::wait and
/// Kind::collective count as communication. Thread-safe.
class [[nodiscard]] Counted {
 public:
  explicit Counted(Kind kind);
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted();

 private:
  Kind kind_;
  int64_t begin_;  // 0: not counted
};

/// For threads of which one at a time goes on. While it lives, what Counted measures on this thread is apart from what
/// other threads do, and stands still while the thread waits for its turn. One on a thread.
class [[nodiscard]] TakesTurns {
 public:
  TakesTurns();
  TakesTurns(const TakesTurns&) = delete;
  TakesTurns& operator=(const TakesTurns&) = delete;
  ~TakesTurns();
  /// Runs `wait`, on the thread that made this.
  void wait(const std::function<void()>& wait);

  struct State;  ///< of its thread

 private:
  std::unique_ptr<State> state_;
};

/// While it lives, nothing is added. Not nested.
class [[nodiscard]] Uncounted {
 public:
  Uncounted();
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;
  ~Uncounted();
};

}  // namespace lockstep::timeline
