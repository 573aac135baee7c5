// What a run has logged, and as few points of it as a picture needs. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace lockstep::tools {

/// Values of one name. `records[i]` is the number of the record that has `values[i]`; NaN where it was not finite.
struct Series {
  std::vector<uint32_t> records{};
  std::vector<double> values{};
};

/// The records of one rank, in the order of their file.
struct History {
  std::vector<int64_t> steps{};
  std::vector<double> times{};  ///< seconds since 1970; empty where they were not kept
  std::map<std::string, Series> series{};

  /// A new record. `time` is left out where the history has none.
  void begin_record(int64_t step, double time);
  /// A value of the record that begin_record() has begun.
  void add(const std::string& name, double value);
};

/// Consecutive values as one: the first and last of them by index, and over the finite ones mean, least and
/// greatest, which are NaN where none is finite.
struct Bucket {
  size_t first = 0, last = 0;
  double mean = 0, min = 0, max = 0;
};

/// At most `limit` buckets, of numbers of values that differ by one at most; one for each value where there are
/// no more than `limit`. So no peak is lost, and the mean is that of all values.
std::vector<Bucket> condense(std::span<const double> values, size_t limit);

/// Steps per second over at most `limit` parts of the run, between records that have `name`. Parts in which no
/// time or no step has passed are left out. Empty where times were not kept.
struct Rate {
  double step = 0, time = 0, per_second = 0;
};
std::vector<Rate> step_rates(const History& history, const std::string& name, size_t limit);

}  // namespace lockstep::tools
