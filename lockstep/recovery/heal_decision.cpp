#include "lockstep/recovery/heal_decision.h"

#include <algorithm>

namespace lockstep::detail {

int64_t HealReport::position() const {
  if (is_new || holds == Holds::neither) return -1;
  return holds == Holds::after ? steps + 1 : steps;
}

HealDecision decide_heal(const std::vector<HealReport>& reports) {
  HealDecision decision;
  for (const HealReport& report : reports) {
    if (report.is_new) continue;
    decision.steps =
        std::max(decision.steps, report.steps + (report.holds == HealReport::Holds::after ? 1 : 0));
  }
  for (size_t r = 0; r < reports.size() && decision.donor < 0; ++r) {
    if (reports[r].position() == decision.steps) decision.donor = static_cast<int>(r);
  }
  return decision;
}

std::optional<LackingGroup> find_lacking_group(const std::vector<std::vector<HealGroup>>& groups) {
  for (size_t r = 0; r < groups.size(); ++r) {
    for (const HealGroup& group : groups[r]) {
      for (const int member : group.ranks) {
        const auto& of_member = groups.at(static_cast<size_t>(member));
        if (std::none_of(of_member.begin(), of_member.end(),
                         [&](const HealGroup& other) { return other.name == group.name; })) {
          return LackingGroup{member, static_cast<int>(r), group};
        }
      }
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::detail
