// How many values lie where: of weights, of gradients.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

/// Bins of equal width over the finite values.
struct Histogram {
  std::vector<double> edges{};    ///< one more than there are bins, ascending
  std::vector<int64_t> counts{};  ///< values in [edges[i], edges[i + 1]); the last bin has its upper edge too
  int64_t number = 0;             ///< of finite values; what is not finite is left out
  double min = 0, max = 0, sum = 0, sum_squares = 0;
};

/// Throws ValueError for less than one bin. Without a finite value it has no bins.
Histogram make_histogram(std::span<const float> values, int bins = 64);
Histogram make_histogram(std::span<const double> values, int bins = 64);

}  // namespace lockstep
