#include "tools/report/series.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep::tools {

void History::begin_record(int64_t step, double time) {
  steps.push_back(step);
  if (!std::isnan(time)) times.push_back(time);
}

void History::add(const std::string& name, double value) {
  Series& one = series[name];
  const auto record = static_cast<uint32_t>(steps.size() - 1);
  if (!one.records.empty() && one.records.back() == record) {
    one.values.back() = value;
    return;
  }
  one.records.push_back(record);
  one.values.push_back(std::isfinite(value) ? value : std::nan(""));
}

std::vector<Bucket> condense(std::span<const double> values, size_t limit) {
  const size_t number = std::min(values.size(), limit);
  std::vector<Bucket> buckets;
  buckets.reserve(number);
  for (size_t b = 0; b < number; ++b) {
    Bucket bucket{.first = b * values.size() / number, .last = (b + 1) * values.size() / number - 1};
    double sum = 0;
    size_t finite = 0;
    bucket.min = std::numeric_limits<double>::infinity();
    bucket.max = -bucket.min;
    for (size_t i = bucket.first; i <= bucket.last; ++i) {
      if (std::isnan(values[i])) continue;
      sum += values[i];
      ++finite;
      bucket.min = std::min(bucket.min, values[i]);
      bucket.max = std::max(bucket.max, values[i]);
    }
    bucket.mean = finite > 0 ? sum / static_cast<double>(finite) : std::nan("");
    if (finite == 0) bucket.min = bucket.max = bucket.mean;
    buckets.push_back(bucket);
  }
  return buckets;
}

std::vector<Rate> step_rates(const History& history, const std::string& name, size_t limit) {
  const auto found = history.series.find(name);
  if (found == history.series.end() || history.times.size() != history.steps.size()) return {};
  const auto& records = found->second.records;
  if (records.size() < 2 || limit == 0) return {};
  const size_t parts = std::min(records.size() - 1, limit);
  std::vector<Rate> rates;
  for (size_t part = 0; part < parts; ++part) {
    const size_t from = records[part * (records.size() - 1) / parts];
    const size_t to = records[(part + 1) * (records.size() - 1) / parts];
    const auto steps = static_cast<double>(history.steps[to] - history.steps[from]);
    const double seconds = history.times[to] - history.times[from];
    if (steps <= 0 || seconds <= 0) continue;
    rates.push_back({.step = static_cast<double>(history.steps[to]),
                     .time = history.times[to],
                     .per_second = steps / seconds});
  }
  return rates;
}

}  // namespace lockstep::tools
