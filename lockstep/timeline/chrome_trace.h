// A job's spans as a file for Perfetto and chrome://tracing (JSON, "Trace Event Format"). Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/timeline/part.h"

namespace lockstep::timeline {

/// What one process recorded. A rank that was started again has several.
struct ProcessTrace {
  int rank = 0, world_size = 1;
  std::string host;
  int64_t clock_error = 0;                  // of the events' times, in nanoseconds
  bool finished = true;                     // false: it ended without leaving
  uint64_t lost = 0;                        // events that found no place
  std::vector<std::vector<Event>> threads;  // times by rank 0's clock; each in the order of writing
};

/// Rows for spans that overlap: the number of the row of each, in the order of their beginnings, so that no
/// two of a row overlap and there are as few rows as possible. spans: (begin, end), sorted by begin.
std::vector<size_t> assign_rows(const std::vector<std::pair<int64_t, int64_t>>& spans);

/// Hands the file's text to `append`, piece by piece.
void write_chrome_trace(const std::vector<ProcessTrace>& processes,
                        const std::function<void(std::string_view)>& append);

}  // namespace lockstep::timeline
