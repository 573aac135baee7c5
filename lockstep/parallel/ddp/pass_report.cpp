#include "lockstep/parallel/ddp/pass_report.h"

#include <fmt/format.h>

namespace lockstep {

PassVerdict decide(const std::vector<std::string_view>& reports, bool allows_missing) {
  const size_t parameters = reports.empty() ? 0 : reports.front().size() - 1;
  PassVerdict verdict;
  verdict.lacking_ranks.resize(parameters);
  verdict.is_used.resize(parameters);
  bool all_absent = true, any_lacking = false, any_changed = false;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const auto role = static_cast<Role>(reports[rank][0]);
    all_absent = all_absent && role == Role::absent;
    any_changed = any_changed || role == Role::changed;
    if (role == Role::joined || role == Role::changed) continue;
    if (role != Role::active) verdict.failed_ranks.push_back(static_cast<int>(rank));
    for (size_t p = 0; p < parameters; ++p) {
      const auto seen = static_cast<GradientSeen>(reports[rank][1 + p]);
      if (seen != GradientSeen::missing) verdict.is_used[p] = true;
      if (seen == GradientSeen::ready) continue;
      verdict.lacking_ranks[p].push_back(static_cast<int>(rank));
      any_lacking = true;
    }
  }
  using Outcome = PassVerdict::Outcome;
  if (all_absent) {
    verdict.outcome = Outcome::untouched;
  } else if (!verdict.failed_ranks.empty()) {
    verdict.outcome = Outcome::failed;
  } else if (any_changed) {
    verdict.outcome = Outcome::changed;
  } else if (any_lacking && !allows_missing) {
    verdict.outcome = Outcome::refused;
  }
  return verdict;
}

std::string describe_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += fmt::format("{}{}", text.empty() ? "" : ", ", rank);
  return text;
}

std::string describe_missing(const PassVerdict& verdict, const std::vector<std::string>& names) {
  constexpr size_t kMostNames = 20;
  std::string text;
  size_t count = 0;
  for (size_t p = 0; p < names.size(); ++p) {
    if (verdict.lacking_ranks[p].empty() || ++count > kMostNames) continue;
    text += fmt::format("{}{} (rank {})", text.empty() ? "" : "; ", names[p],
                        describe_ranks(verdict.lacking_ranks[p]));
  }
  if (count > kMostNames) text += fmt::format("; and {} more", count - kMostNames);
  return text;
}

}  // namespace lockstep
