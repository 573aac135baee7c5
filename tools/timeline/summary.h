// How much of a rank's communication hides behind its computing. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/timeline/trace.h"

namespace lockstep::tools {

using Intervals = std::vector<std::pair<double, double>>;

/// Without overlaps, sorted.
Intervals united(Intervals intervals);
double length(const Intervals& intervals);
/// Returns what lies in both of two united sets of intervals.
Intervals intersection(const Intervals& a, const Intervals& b);

/// Microseconds.
struct RankSummary {
  int64_t steps = 0;         // backward passes
  double span = 0;           // from the first event to the last
  double compute = 0;        // forward, backward and optimizer, less what they spent waiting
  double data = 0;           // getting batches
  double communication = 0;  // at least one operation was in progress
  double exposed = 0;        // ... and the rank waited for it
  /// Returns the overlapped share of the communication, from 0 to 1; 0 where there was none.
  double overlapped() const { return communication > 0 ? 1 - exposed / communication : 0; }
};
RankSummary summarize(const TraceRank& rank);

/// A table: a line per rank.
std::string summary_text(const Trace& trace);

}  // namespace lockstep::tools
