#include "lockstep/tracking/histogram.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

template <class T>
Histogram count_values(std::span<const T> values, int bins) {
  if (bins < 1) throw ValueError(fmt::format("a histogram has {} bins; it must have 1 or more", bins));
  Histogram result;
  for (const T each : values) {
    const auto value = static_cast<double>(each);
    if (!std::isfinite(value)) continue;
    result.min = result.number == 0 ? value : std::min(result.min, value);
    result.max = result.number == 0 ? value : std::max(result.max, value);
    ++result.number;
    result.sum += value;
    result.sum_squares += value * value;
  }
  if (result.number == 0) return result;
  // Equal values get a bin around them, as numpy.histogram does it.
  const double low = result.min < result.max ? result.min : result.min - 0.5;
  const double high = result.min < result.max ? result.max : result.max + 0.5;
  const auto count = static_cast<size_t>(bins);
  const double width = high / bins - low / bins;
  for (size_t i = 0; i < count; ++i) result.edges.push_back(low + width * static_cast<double>(i));
  result.edges.push_back(high);
  result.counts.resize(count);
  for (const T each : values) {
    const auto value = static_cast<double>(each);
    if (!std::isfinite(value)) continue;
    const double place = width > 0 ? (value - low) / width : 0;
    size_t bin = std::min(static_cast<size_t>(std::max(place, 0.0)), count - 1);
    // Rounding may put a value beside the edge that it is compared with.
    if (value < result.edges[bin] && bin > 0) --bin;
    if (bin + 1 < count && value >= result.edges[bin + 1]) ++bin;
    ++result.counts[bin];
  }
  return result;
}

}  // namespace

Histogram make_histogram(std::span<const float> values, int bins) { return count_values(values, bins); }
Histogram make_histogram(std::span<const double> values, int bins) { return count_values(values, bins); }

}  // namespace lockstep
