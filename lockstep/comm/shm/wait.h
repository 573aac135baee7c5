// How a rank waits: briefly by spinning, then by yielding, then asleep on a futex.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "lockstep/base/cores.h"

namespace lockstep::shm {

using Clock = std::chrono::steady_clock;

/// Sleeps while `word` still holds `expected`, at most `timeout`. May return early.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds timeout);
/// Wakes every sleeper on `word`.
void futex_wake(std::atomic<uint32_t>& word);

/// Paces one wait. Ranks <= cores: about 200 us of pauses, 20 yields, then sleep. More ranks than cores: a
/// spinning rank would keep the one it waits for from running, so no pauses.
class Backoff {
 public:
  explicit Backoff(bool oversubscribed) : pauses_left_(oversubscribed ? 0 : kPauses) {}
  /// Pauses or yields and returns true; false once it is time to sleep.
  bool relax();

 private:
  static constexpr int kPauses = 5000;
  static constexpr int kYields = 20;
  int pauses_left_;
  int yields_left_ = kYields;
};

}  // namespace lockstep::shm
