// What becomes of a step in which a rank has died. Pure: no effects.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::detail {

/// What a rank has, where all of them meet after one was replaced.
struct HealReport {
  enum class Holds : uint8_t {
    before,   ///< the state in which the step began
    after,    ///< that after the step: this rank has done its part of it, weights are written
    neither,  ///< weights are written, and its part of the step has not ended
  };
  bool is_new = false;  ///< a new process, which has no state
  int64_t steps = 0;    ///< that had ended on this rank
  Holds holds = Holds::before;

  /// So many steps are in the state that it has; -1: it has none.
  int64_t position() const;
};

struct HealDecision {
  int donor = -1;     ///< the rank whose state all get; -1: nobody has one
  int64_t steps = 0;  ///< that have ended now, on all ranks
};

/// `reports`: by rank, the same on all of them. The state that is farthest counts, and of those who have it the lowest
/// rank: nobody could go back from there.
HealDecision decide_heal(const std::vector<HealReport>& reports);

/// A process group of a rank.
struct HealGroup {
  std::string name;        ///< the same on all of its ranks, and no other group's
  std::vector<int> ranks;  ///< its members
};

/// Rank `rank` lacks a group that rank `other`, another of the group's members, has.
struct LackingGroup {
  int rank = 0, other = 0;
  HealGroup group{};
};

/// `groups`: by rank; each may have others, but all members of a group have it. None: nobody lacks one.
std::optional<LackingGroup> find_lacking_group(const std::vector<std::vector<HealGroup>>& groups);

}  // namespace lockstep::detail
