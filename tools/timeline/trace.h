// A timeline file as it is read back: Chrome's "Trace Event Format", as far as Lockstep writes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lockstep::tools {

/// Times in microseconds since the file's beginning.
struct TraceSpan {
  std::string category, name;
  double begin = 0, end = 0;
  int64_t row = 0;
  int64_t bucket = -1, bytes = -1;  // -1: none
};

struct TraceRank {
  std::string name;  // "rank 0"
  bool finished = true;
  std::map<int64_t, std::string> rows;  // names
  std::vector<TraceSpan> spans;         // sorted by begin
  /// The spans of these categories, as (begin, end).
  std::vector<std::pair<double, double>> of(const std::vector<std::string>& categories) const;
};

struct Trace {
  std::map<int64_t, TraceRank> ranks;
  int64_t lost_events = 0;
  double clock_error = 0;  // microseconds; the largest of all ranks
};

/// Reads one file, or several of one job: of machines without a common file system. Throws FileError naming
/// the file and what is wrong with it.
Trace read_trace(const std::vector<std::filesystem::path>& files);

/// Writes several files of one job as one. Throws FileError.
void join_traces(const std::vector<std::filesystem::path>& files, const std::filesystem::path& output);

}  // namespace lockstep::tools
