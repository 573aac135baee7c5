#include "lockstep/shm/peers.h"

#include "lockstep/shm/process.h"

namespace lockstep::shm {

Peers::Peers(const Segment& segment)
    : segment_(segment), pid_namespace_(pid_namespace()), pidfds_(static_cast<size_t>(segment.ranks())) {}

std::optional<Ending> Peers::find_ending(int rank) {
  const RankInfo info = segment_.rank_info(rank);
  switch (info.state) {
    case RankState::absent:
      return std::nullopt;
    case RankState::left:
      return Ending{.words = "has left the job", .has_left = true};
    case RankState::exited:
      return Ending{.words = describe_wait_status(info.wait_status)};
    case RankState::attached: {
      // Where it may be replaced, its launcher says what becomes of it.
      if (info.pid_namespace != pid_namespace_ || segment_.can_heal()) return std::nullopt;
      const base::LockGuard lock(mutex_);
      if (!process_ended(pidfds_[static_cast<size_t>(rank)], info.pid)) return std::nullopt;
      return Ending{.words = "died"};
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::shm
