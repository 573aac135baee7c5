// What the benchmark found, as a table, as JSON and as a picture.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/collectives/collective.h"
#include "bench/collectives/spread.h"

namespace lockstep::bench {

/// One line of the result: one engine with one algorithm at one size.
struct Row {
  size_t bytes = 0;
  std::string backend, algorithm;
  double p50 = 0, p99 = 0;                    ///< seconds, of the slowest rank
  std::map<std::string, Spread> faster_than;  ///< by peer: its time by this one's, round by round
};

struct Result {
  Collective collective{};
  int ranks = 1;
  int cores = 1;
  std::string dtype;
  bool registered = true;
  std::map<size_t, double> limit;  ///< seconds, by size; none where there is no work to speak of
  /// How many seconds it takes to read and write the bytes of an all-reduce once, as STREAM's scale in place.
  /// The limit is no limit where it is far from this.
  std::map<size_t, double> update;
  std::vector<Row> rows;
  std::vector<std::string> notes;  ///< how peers were run, and what was not measured
};

std::string table(const Result& result);
/// Where AUTO was measured beside other algorithms: one line per size, what it chose and whether that was the
/// fastest.
std::string verdicts(const Result& result);
/// One object per line.
std::string json_lines(const Result& result);
/// Time over size, both logarithmic, one line per backend and algorithm, and the machine's limit.
std::string svg(const Result& result);

}  // namespace lockstep::bench
