// Is another process still alive? Is this one a copy?
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/base/fd.h"

namespace lockstep::shm {

/// True once the process `pid` has ended, a zombie included. `pidfd` is opened on the first call and names
/// the process from then on, whoever gets its number later. Does not block.
bool process_ended(UniqueFd& pidfd, int pid);

/// So many threads has this process; 0 where /proc does not tell.
size_t count_threads();

/// Returns the PID namespace of the calling process; process numbers are comparable only within it.
uint64_t pid_namespace();

/// Made by a rank, tells whether the calling process is that rank or was forked from it: a fork has all of
/// the rank's memory but is no rank. Costs one load.
class RankProcess {
 public:
  RankProcess();
  bool is_copy() const { return forks_.load(std::memory_order_relaxed) != at_creation_; }
  /// Throws ValueError where is_copy(). rank: for the message.
  void check(int rank) const {
    if (is_copy()) refuse(rank);
  }

 private:
  [[noreturn]] void refuse(int rank) const;
  static inline std::atomic<uint32_t> forks_{0};  // between the first rank's process and this one
  uint32_t at_creation_;
  int pid_;
};

}  // namespace lockstep::shm
