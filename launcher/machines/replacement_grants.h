// Which ranks of a job on several machines are replaced when they die: one at a time, and so many in all. Pure.
#pragma once

#include <cstdint>
#include <optional>
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
  void begin_round();
  /// `rank` has died.
  Answer ask(int rank);
  /// The process in its place has the job's state.
  void came_back(int rank);

 private:
  int most_;
  int count_ = 0;
  uint32_t epoch_ = 0;              // of the round
  std::optional<int> under_way_{};  // the rank that has not come back yet
};

}  // namespace lockstep::launcher
