// The signs of life of a rank whose bytes go another way than through the segment.
#pragma once

#include <cstdint>

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
  Pulse(const Pulse&) = delete;
  /// Marks it as left.
  ~Pulse();

  /// An operation starts.
  void start(OpKind kind, uint64_t bytes);

  /// While one lives, a thread of this rank waits for its peers.
  class Waiting {
   public:
    explicit Waiting(Pulse& pulse) : waiting_(pulse.segment_.doorbell(pulse.rank_).waiting) { ++waiting_; }
    Waiting(const Waiting&) = delete;
    ~Waiting() { --waiting_; }

   private:
    std::atomic<uint32_t>& waiting_;
  };

 private:
  Segment segment_;
  int rank_;
  RankProcess process_;
};

}  // namespace lockstep::shm
