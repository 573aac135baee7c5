// Which ranks of a segment still live.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/fd.h"
#include "lockstep/base/mutex.h"
#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// How a rank has ended.
struct Ending {
  std::string words;      ///< what follows "it": "has left the job", "was killed by signal 9 (Killed)"
  bool has_left = false;  ///< by its own will: it called destroy(), or its program ended well
};

/// Thread-safe. None of the calls blocks.
class Peers {
 public:
  explicit Peers(const Segment& segment);
  /// How `rank` has left the job, or ended; nothing while it lives. A process in another PID namespace, whose number
  /// means nothing here, is taken to live until it or its launcher says otherwise.
  std::optional<Ending> find_ending(int rank);
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
