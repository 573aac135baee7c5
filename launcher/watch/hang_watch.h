// Notices ranks that start no collective while others wait for them. Pure: no effects.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/shm/segment.h"

namespace lockstep::launcher {

struct Hang {
  std::vector<int> late;  ///< local ranks that are behind
  std::string text;       ///< who is where, one line
};

class HangWatch {
 public:
  /// `timeout`: seconds without progress; 0: never. `first_rank`: rank of local rank 0.
  HangWatch(double timeout, int first_rank) : timeout_(timeout), first_rank_(first_rank) {}

  /// How often to look, in seconds; negative: never.
  double interval() const;
  /// Given every local rank's record at `now`: a hang, told once until there is progress again. Ranks that
  /// take part in no collective, or have left, are not watched.
  std::optional<Hang> look(const std::vector<shm::RankInfo>& ranks, double now);
  /// Nobody had a chance to make progress until now.
  void forgive(double now) { since_ = now; }

 private:
  double timeout_;
  int first_rank_;
  std::vector<uint64_t> operations_;
  double since_ = 0;
  bool told_ = false;
};

}  // namespace lockstep::launcher
