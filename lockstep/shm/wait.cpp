#include "lockstep/shm/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace lockstep::shm {
namespace {

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
constexpr size_t kMostWords = 128;
constexpr uint32_t kFutex32Bits = 2;

/// The kernel's struct futex_waitv, which older headers lack.
struct Waiter {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};

}  // namespace

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  timespec relative{};
  relative.tv_sec = seconds.count();
  relative.tv_nsec = (timeout - seconds).count();
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &relative, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void futex_wait_any(const std::vector<FutexWord>& words, std::chrono::nanoseconds timeout) {
  std::vector<Waiter> waiters;
  for (const FutexWord& word : words) {
    if (waiters.size() == kMostWords) break;
    waiters.push_back({word.expected, reinterpret_cast<uint64_t>(word.word), kFutex32Bits, 0});
  }
  timespec deadline{};
  ::clock_gettime(CLOCK_MONOTONIC, &deadline);
  const int64_t end = deadline.tv_nsec + timeout.count();
  deadline.tv_sec += end / 1000000000;
  deadline.tv_nsec = end % 1000000000;
  const bool all_fit = waiters.size() == words.size();
  if (all_fit &&
      (::syscall(SYS_futex_waitv, waiters.data(), waiters.size(), 0, &deadline, CLOCK_MONOTONIC) >= 0 ||
       errno != ENOSYS)) {
    return;
  }
  constexpr std::chrono::nanoseconds kShort = std::chrono::milliseconds(1);
  futex_wait(*words.front().word, words.front().expected, std::min(timeout, kShort));
}

}  // namespace lockstep::shm
