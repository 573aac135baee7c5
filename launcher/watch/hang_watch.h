// Notices ranks that others wait for, in init() or in a collective. Pure: no effects.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/shm/segment.h"

namespace lockstep::launcher {

struct Hang {
  std::vector<int> late;  ///< indexes of the ranks that the others wait for; empty: all wait
  std::string text;       ///< who is where, one line
};

/// The hang of ranks that have made no progress for `quiet` seconds; none where nobody waits, or it is not
/// known for whom. `first_rank`: rank of the first; `is_all`: the job has no others.
std::optional<Hang> find_hang(const std::vector<shm::RankInfo>& ranks, int first_rank, bool is_all,
                              double quiet);

/// "rank 3" or "ranks 3, 4": `ranks` are indexes, the first of them is rank `first_rank`.
std::string names_of_ranks(const std::vector<int>& ranks, int first_rank);

/// Ranks of one machine that have made no progress for --hang-timeout and have no hang among themselves: for
/// a comparison with those of the other machines.
struct QuietRanks {
  double seconds = 0;
  std::vector<shm::RankInfo> ranks{};  ///< `waits`: twice in a row
};

class HangWatch {
 public:
  /// `timeout`: seconds without progress; 0: never. `first_rank`: rank of local rank 0. `is_all`: the job has
  /// no ranks elsewhere.
  HangWatch(double timeout, int first_rank, bool is_all)
      : timeout_(timeout), first_rank_(first_rank), is_all_(is_all) {}

  /// How often to look, in seconds; negative: never.
  double interval() const;
  /// Given every local rank's record at `now`: a hang, told once until there is progress again. Where nobody
  /// waits there is none, however long it takes. Ranks that have left are not watched, nor are any before the
  /// first of them has reached init().
  std::optional<Hang> look(const std::vector<shm::RankInfo>& ranks, double now);
  /// What the last look() saw, where it was quiet and there was no hang to tell of.
  std::optional<QuietRanks> quiet() const;
  /// Nobody had a chance to make progress until now.
  void forgive(double now) { since_ = now; }

 private:
  /// What changes when a rank makes progress.
  struct Progress {
    shm::RankState state;
    uint64_t operations;
    bool operator==(const Progress&) const = default;
  };

  double timeout_;
  int first_rank_;
  bool is_all_;
  std::vector<Progress> progress_;
  std::vector<bool> waited_;         ///< at the look before
  std::vector<shm::RankInfo> seen_;  ///< at the last one; `waits`: at the one before, too
  double since_ = 0, looked_at_ = 0;
  bool told_ = false;
};

}  // namespace lockstep::launcher
