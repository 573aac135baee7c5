#include "launcher/watch/hang_watch.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::launcher {
namespace {

std::string place_of(int rank, const shm::RankInfo& info) {
  return info.operations == 0
             ? fmt::format("rank {} has started none", rank)
             : fmt::format("rank {} is at its {}. ({})", rank, info.operations, info.last_operation);
}

}  // namespace

double HangWatch::interval() const { return timeout_ > 0 ? std::clamp(timeout_ / 4, 0.05, 1.0) : -1; }

std::optional<Hang> HangWatch::look(const std::vector<shm::RankInfo>& ranks, double now) {
  if (timeout_ <= 0) return std::nullopt;
  std::vector<uint64_t> operations;
  for (const shm::RankInfo& rank : ranks) operations.push_back(rank.operations);
  if (operations != operations_) {
    operations_ = std::move(operations);
    since_ = now;
    told_ = false;
    return std::nullopt;
  }
  if (told_ || now - since_ < timeout_) return std::nullopt;
  const auto takes_part = [](const shm::RankInfo& rank) { return rank.state == shm::RankState::attached; };
  uint64_t most = 0;
  for (const shm::RankInfo& rank : ranks) {
    if (takes_part(rank)) most = std::max(most, rank.operations);
  }
  Hang hang;
  std::string late, waiting;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!takes_part(ranks[i])) continue;
    const int rank = first_rank_ + static_cast<int>(i);
    if (ranks[i].operations < most) {
      hang.late.push_back(static_cast<int>(i));
      late += (late.empty() ? "" : ", ") + place_of(rank, ranks[i]);
    } else if (waiting.empty()) {
      waiting = place_of(rank, ranks[i]);
    }
  }
  if (hang.late.empty()) return std::nullopt;
  told_ = true;
  hang.text = fmt::format("no collective was started for {:.0f} s and ranks wait for others: {}, while {}",
                          now - since_, late, waiting);
  return hang;
}

}  // namespace lockstep::launcher
