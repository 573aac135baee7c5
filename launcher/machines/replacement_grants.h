// How many ranks of a job on several machines are replaced when they die. Pure.
#pragma once

#include <cstdint>
#include <string>

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
  void begin_round() { epoch_ = 0; }
  /// So many ranks have died, at once.
  Answer ask(int ranks = 1);

 private:
  int most_;
  int count_ = 0;
  uint32_t epoch_ = 0;  // of the round
};

}  // namespace lockstep::launcher
