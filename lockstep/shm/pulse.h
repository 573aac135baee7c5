// The signs of life of a rank whose bytes go another way than through the segment.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "lockstep/shm/process.h"
#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// This rank's record in the launcher's segment, which the launcher's hang watch reads. No peer looks at it.
/// All members may be called from any thread.
class Pulse {
 public:
  /// Maps the segment behind `fd`, which the caller keeps, and marks `rank` as attached. Throws ValueError
  /// when there is no such rank or it has joined before, Error when the segment is none of ours.
  Pulse(int fd, int rank);
  /// For a rank that has joined the segment by itself. It counts calls.
  Pulse(std::shared_ptr<const Segment> segment, int rank);
  Pulse(const Pulse&) = delete;
  /// Marks it as left, unless it has joined by itself.
  ~Pulse();

  /// From here on the launcher sees what start() is told, not the operations in the segment: they are parts of calls, and
  /// the ranks of other machines have others.
  void count_calls();
  /// An operation starts.
  void start(OpKind kind, uint64_t bytes);
  /// Does the launcher replace ranks that die, if they can be?
  bool can_heal() const { return segment_->can_heal(); }
  /// This process is about to join the segment by itself: from here on the rank is marked by that.
  void hand_over();

  /// While one lives, a thread of this rank waits for its peers.
  class Waiting {
   public:
    explicit Waiting(Pulse& pulse) : waiting_(pulse.segment_->doorbell(pulse.rank_).waiting) { ++waiting_; }
    Waiting(const Waiting&) = delete;
    ~Waiting() { --waiting_; }

   private:
    std::atomic<uint32_t>& waiting_;
  };

 private:
  std::shared_ptr<const Segment> segment_;
  int rank_;
  RankProcess process_;
  std::atomic<bool> is_handed_over_ = false;
};

}  // namespace lockstep::shm
