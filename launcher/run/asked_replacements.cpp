#include "launcher/run/asked_replacements.h"

#include <algorithm>
#include <utility>

namespace lockstep::launcher {
namespace {

/// The rendezvous answers at once, if it answers.
constexpr double kLongestAnswer = 5;

}  // namespace

std::optional<Event> AskedReplacements::take(int rank) {
  const auto found =
      std::find_if(asked_.begin(), asked_.end(), [&](const Asked& each) { return each.rank == rank; });
  if (found == asked_.end()) return std::nullopt;
  const Event death = found->death;
  asked_.erase(found);
  return death;
}

std::vector<AskedReplacements::Refused> AskedReplacements::take_refused(const std::deque<message::Kept>& kept,
                                                                        bool are_ending, double now) {
  std::vector<Refused> refused;
  for (const Asked& each : std::exchange(asked_, {})) {
    const auto answer = std::find_if(kept.begin(), kept.end(),
                                     [&](const message::Kept& said) { return said.rank == each.rank; });
    if (answer != kept.end()) {
      refused.push_back({each.death, answer->reason});
    } else if (are_ending || now - each.at > kLongestAnswer) {
      refused.push_back({each.death, "the rendezvous does not answer"});
    } else {
      asked_.push_back(each);
    }
  }
  return refused;
}

}  // namespace lockstep::launcher
