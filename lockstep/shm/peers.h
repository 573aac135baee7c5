// Which ranks of a segment still live.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/fd.h"
#include "lockstep/base/mutex.h"
#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// Thread-safe. None of the calls blocks.
class Peers {
 public:
  explicit Peers(const Segment& segment);
  /// Has `rank` left the job, or ended? `how`: in words. A process in another PID namespace, whose number
  /// means nothing here, is taken to live until it or its launcher says otherwise.
  bool is_gone(int rank, std::string& how);
  /// Has a new process taken the place of `rank` since this one has met the others last?
  bool was_replaced(int rank) const {
    return segment_.rank_record(rank).changed_at.load(std::memory_order_acquire) > epoch();
  }
  /// The segment's epoch when this process has met the others last.
  uint32_t epoch() const { return epoch_.load(std::memory_order_relaxed); }
  void set_epoch(uint32_t epoch) { epoch_.store(epoch, std::memory_order_relaxed); }

 private:
  const Segment& segment_;
  uint64_t pid_namespace_;
  base::Mutex mutex_;
  std::vector<UniqueFd> pidfds_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<uint32_t> epoch_{0};
};

}  // namespace lockstep::shm
