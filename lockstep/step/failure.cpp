#include "lockstep/step/failure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lockstep::detail {
namespace {

using Kind = FailureReport::Kind;

std::vector<int> find_ranks(const std::vector<FailureReport>& reports, Kind kind) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].kind == kind) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::string describe(int rank, const FailureReport& report) {
  if (report.kind == Kind::skipped) return fmt::format("rank {} has skipped it {}", rank, report.place);
  return fmt::format("rank {} failed {}: {}", rank, report.place, report.what);
}

}  // namespace

nlohmann::json FailureReport::to_json() const {
  return {{"kind", static_cast<int>(kind)}, {"place", place}, {"what", what}, {"groups", groups}};
}

FailureReport FailureReport::from_json(const nlohmann::json& json) {
  return {.kind = static_cast<Kind>(json.at("kind").get<int>()),
          .place = json.at("place"),
          .what = json.at("what"),
          .groups = json.at("groups")};
}

FailureVerdict judge(const std::vector<FailureReport>& reports) {
  FailureVerdict verdict;
  for (const Kind kind : {Kind::own, Kind::skipped, Kind::collective}) {
    verdict.failed_ranks = find_ranks(reports, kind);
    verdict.is_skipped = kind == Kind::skipped;
    if (!verdict.failed_ranks.empty()) break;
  }
  constexpr size_t kMostTold = 4;
  std::vector<std::string> causes;
  for (const int rank : verdict.failed_ranks) {
    if (causes.size() == kMostTold) break;
    causes.push_back(describe(rank, reports[static_cast<size_t>(rank)]));
  }
  if (!verdict.failed_ranks.empty()) {
    verdict.place = reports[static_cast<size_t>(verdict.failed_ranks.front())].place;
  }
  if (causes.empty()) causes.emplace_back("a process group was broken before, and no rank says why");
  const size_t more = verdict.failed_ranks.size() - std::min(verdict.failed_ranks.size(), causes.size());
  verdict.message = fmt::format("the step has failed on all ranks: {}{}", fmt::join(causes, "; "),
                                more > 0 ? fmt::format("; and {} more ranks", more) : "");
  return verdict;
}

std::optional<int> rank_to_copy(const std::vector<WritesReport>& reports) {
  std::optional<int> least;
  int64_t writes = 0;
  bool differ = false;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const WritesReport& report = reports[rank];
    if (report.has_joined) continue;
    const int64_t own = std::count(report.have_changed.begin(), report.have_changed.end(), true);
    if (least) differ = differ || report.have_changed != reports[static_cast<size_t>(*least)].have_changed;
    if (least && own >= writes) continue;
    least = static_cast<int>(rank);
    writes = own;
  }
  return differ ? least : std::nullopt;
}

std::optional<Leveling> plan_leveling(const std::vector<WritesReport>& reports) {
  const std::optional<int> source = rank_to_copy(reports);
  if (!source) return std::nullopt;
  Leveling plan{.source = *source};
  const WritesReport& first = reports[static_cast<size_t>(*source)];
  // Programs that differ between ranks would not meet in the copies.
  const bool are_alike = std::all_of(reports.begin(), reports.end(), [&](const WritesReport& report) {
    return !report.has_joined && report.have_changed.size() == first.have_changed.size() &&
           report.named == first.named;
  });
  if (!are_alike) return plan;
  plan.is_possible = plan.is_undone = true;
  for (size_t i = 0; i < first.have_changed.size(); ++i) {
    const bool differs = std::any_of(reports.begin(), reports.end(), [&](const WritesReport& report) {
      return report.have_changed[i] != first.have_changed[i];
    });
    if (!differs) continue;
    plan.is_undone = plan.is_undone && !first.have_changed[i];
    if (i < first.named.size() && first.named[i] != WritesReport::Named::all) plan.is_possible = false;
  }
  for (const WritesReport::Named named : first.named)
    plan.models.push_back(named != WritesReport::Named::none);
  return plan;
}

bool is_everywhere(const std::string& name, const std::vector<int>& ranks,
                   const std::vector<FailureReport>& reports) {
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
    const auto& groups = reports[static_cast<size_t>(rank)].groups;
    return std::find(groups.begin(), groups.end(), name) != groups.end();
  });
}

}  // namespace lockstep::detail
