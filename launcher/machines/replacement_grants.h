// How many ranks of a job on several machines are replaced when they die. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::launcher {

/// Decides; the rendezvous tells the machines.
class ReplacementGrants {
 public:
  struct Answer {
    uint32_t epoch = 0;     ///< the one that begins; 0: the rank is not replaced
    std::string refusal{};  ///< why not
  };

  /// `most`: --max-replacements, over all rounds.
  explicit ReplacementGrants(int most) : most_(most) {}

  /// All ranks are new.
  void begin_round() { granted_.clear(); }
  /// So many ranks have died, at once.
  Answer ask(int ranks = 1);
  /// Ranks do not go on in `epoch`, one of this round, so the round ends: nobody was replaced from there on.
  void take_back(uint32_t epoch);

 private:
  int most_;
  int count_ = 0;
  std::vector<int> granted_{};  ///< ranks, by the epoch of the round that began then
};

}  // namespace lockstep::launcher
