#include "tools/timeline/summary.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::tools {

Intervals united(Intervals intervals) {
  std::sort(intervals.begin(), intervals.end());
  Intervals result;
  for (const auto& [begin, end] : intervals) {
    if (!result.empty() && begin <= result.back().second) {
      result.back().second = std::max(result.back().second, end);
    } else {
      result.emplace_back(begin, end);
    }
  }
  return result;
}

double length(const Intervals& intervals) {
  double sum = 0;
  for (const auto& [begin, end] : intervals) sum += end - begin;
  return sum;
}

Intervals intersection(const Intervals& a, const Intervals& b) {
  Intervals result;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    const double begin = std::max(a[i].first, b[k].first), end = std::min(a[i].second, b[k].second);
    if (begin < end) result.emplace_back(begin, end);
    (a[i].second < b[k].second ? i : k) += 1;
  }
  return result;
}

RankSummary summarize(const TraceRank& rank) {
  RankSummary summary;
  if (rank.spans.empty()) return summary;
  double last = 0;
  for (const TraceSpan& span : rank.spans) last = std::max(last, span.end);
  summary.span = last - rank.spans.front().begin;
  summary.steps = static_cast<int64_t>(rank.of({"backward"}).size());
  const Intervals computing = united(rank.of({"forward", "backward", "optimizer"}));
  const Intervals blocked = united(rank.of({"wait", "collective"}));
  const Intervals communication = united(rank.of({"reduce", "collective"}));
  summary.compute = length(computing) - length(intersection(computing, blocked));
  summary.data = length(united(rank.of({"data"})));
  summary.communication = length(communication);
  summary.exposed = length(intersection(communication, blocked));
  return summary;
}

std::string summary_text(const Trace& trace) {
  std::string text =
      fmt::format("{:<10} {:>7} {:>10} {:>12} {:>15} {:>14} {:>11} {:>10}\n", "", "steps", "time s",
                  "compute ms", "communicat. ms", "exposed ms", "overlapped", "data ms");
  for (const auto& [pid, rank] : trace.ranks) {
    const RankSummary summary = summarize(rank);
    text += fmt::format("{:<10} {:>7} {:>10.3f} {:>12.3f} {:>15.3f} {:>14.3f} {:>10.1f}% {:>10.3f}{}\n",
                        rank.name, summary.steps, summary.span / 1e6, summary.compute / 1e3,
                        summary.communication / 1e3, summary.exposed / 1e3, summary.overlapped() * 100,
                        summary.data / 1e3, rank.finished ? "" : "  ended without leaving");
  }
  if (trace.lost_events > 0) {
    text += fmt::format("{} events are missing: each thread keeps its last 65535\n", trace.lost_events);
  }
  if (trace.clock_error > 0) {
    text += fmt::format("times of different machines agree to within {:.1f} us\n", trace.clock_error);
  }
  return text;
}

}  // namespace lockstep::tools
