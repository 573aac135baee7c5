#include "lockstep/shm/world_change.h"

#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/shm/wait.h"

namespace lockstep::shm {

bool WorldChange::meet(uint32_t epoch, Stage stage, std::chrono::milliseconds timeout) const {
  const Segment& segment = node_.segment();
  const uint64_t here = uint64_t{epoch} << 8U | static_cast<uint64_t>(stage);
  own().meeting.store(here, std::memory_order_release);
  const auto deadline = Clock::now() + timeout;
  while (true) {
    std::vector<int> missing;
    for (int r = 0; r < segment.ranks(); ++r) {
      // acquire: what that rank did before.
      if (segment.rank_record(r).meeting.load(std::memory_order_acquire) >= here) continue;
      missing.push_back(r);
      const RankInfo info = segment.rank_info(r);
      if (info.state != RankState::exited && info.state != RankState::left) continue;
      throw PeerLostError(
          fmt::format(
              "[lockstep] rank {}: rank {} {} while a rank was being replaced", node_.rank(), r,
              info.state == RankState::left ? "left the job" : describe_wait_status(info.wait_status)),
          r);
    }
    if (segment.epoch() != epoch) return false;
    if (missing.empty()) return true;
    if (Clock::now() >= deadline) {
      throw TimeoutError(
          fmt::format("[lockstep] rank {}: a rank was replaced, and rank {} did not come to hand over the "
                      "job's state within {} ms",
                      node_.rank(), fmt::join(missing, ", "), timeout.count()),
          missing);
    }
    // Once per death, and while a process starts: not worth a futex.
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace lockstep::shm
