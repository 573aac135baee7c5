// Ranks that have died on one of several machines, until the rendezvous says whether they are replaced. Pure.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "launcher/machines/messages.h"
#include "launcher/process/guardian.h"

namespace lockstep::launcher {

class AskedReplacements {
 public:
  struct Refused {
    Event death{};
    std::string reason{};
  };

  bool empty() const { return asked_.empty(); }
  /// The rendezvous has been asked about `rank` of the job, at `now` (seconds).
  void add(const Event& death, int rank, double now) { asked_.push_back({death, rank, now}); }
  /// The death of `rank`, which is replaced; none: it has not died here.
  std::optional<Event> take(int rank);
  /// Those that are not replaced: by its answers `kept`, because it does not answer, or, if the ranks `are_ending`, all.
  std::vector<Refused> take_refused(const std::deque<message::Kept>& kept, bool are_ending, double now);

 private:
  struct Asked {
    Event death;
    int rank;
    double at;
  };
  std::vector<Asked> asked_;
};

}  // namespace lockstep::launcher
