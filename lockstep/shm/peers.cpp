#include "lockstep/shm/peers.h"

#include "lockstep/shm/process.h"

namespace lockstep::shm {

Peers::Peers(const Segment& segment)
    : segment_(segment), pid_namespace_(pid_namespace()), pidfds_(static_cast<size_t>(segment.ranks())) {}

bool Peers::is_gone(int rank, std::string& how) {
  const RankInfo info = segment_.rank_info(rank);
  switch (info.state) {
    case RankState::absent:
      return false;
    case RankState::left:
      how = "has left the job";
      return true;
    case RankState::exited:
      how = describe_wait_status(info.wait_status);
      return true;
    case RankState::attached: {
      // Where it may be replaced, its launcher says what becomes of it.
      if (info.pid_namespace != pid_namespace_ || segment_.can_heal()) return false;
      how = "died";
      const base::LockGuard lock(mutex_);
      return process_ended(pidfds_[static_cast<size_t>(rank)], info.pid);
    }
  }
  return false;
}

}  // namespace lockstep::shm
