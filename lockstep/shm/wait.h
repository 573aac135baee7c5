// How a rank waits: briefly by spinning, then by yielding, then asleep on a futex.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "lockstep/base/cores.h"

namespace lockstep::shm {

using Clock = std::chrono::steady_clock;

/// Sleeps while `word` still holds `expected`, at most `timeout`. May return early.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds timeout);
/// Wakes every sleeper on `word`.
void futex_wake(std::atomic<uint32_t>& word);

struct FutexWord {
  std::atomic<uint32_t>* word;
  uint32_t expected;
};
/// futex_wait on all of `words` at once, up to 128. A kernel before 5.16 sleeps at most a millisecond
/// instead.
void futex_wait_any(const std::vector<FutexWord>& words, std::chrono::nanoseconds timeout);

/// Some tens of nanoseconds for the core's other thread.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Asks for a cache line that will be written soon and may lie in another core's cache. (The compiler's own
/// prefetch for writing is one for reading unless it may assume a newer processor.)
inline void fetch_for_writing(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw (%0)" : : "r"(line));
#else
  __builtin_prefetch(line, 1);
#endif
}

/// std::atomic_thread_fence(std::memory_order_seq_cst): what was stored before is visible before anything is
/// loaded after. clang makes an mfence of that, which takes twice as long as this does.
inline void full_fence() {
#if defined(__x86_64__)
  asm volatile("lock; orq $0, (%%rsp)" : : : "memory", "cc");
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

/// Paces one wait. Ranks <= cores: some bare looks, about 200 us of pauses, 20 yields, then sleep. More ranks
/// than cores: a spinning rank would keep the one it waits for from running, so no pauses.
class Backoff {
 public:
  enum class Step { look, yield, sleep };
  explicit Backoff(bool oversubscribed)
      : looks_left_(oversubscribed ? 0 : kLooks), pauses_left_(oversubscribed ? 0 : kPauses) {}
  /// What to do before the next look; has paused already where that is due.
  Step next() {
    if (looks_left_ > 0) {
      --looks_left_;
      return Step::look;
    }
    if (pauses_left_ > 0) {
      --pauses_left_;
      pause();
      return Step::look;
    }
    return yields_left_-- > 0 ? Step::yield : Step::sleep;
  }

 private:
  static constexpr int kLooks = 100;  // without a pause, which alone takes tens of nanoseconds
  static constexpr int kPauses = 5000;
  static constexpr int kYields = 20;
  int looks_left_;
  int pauses_left_;
  int yields_left_ = kYields;
};

}  // namespace lockstep::shm
