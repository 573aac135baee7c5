// A figure over the rounds of a benchmark.
#pragma once

#include <vector>

namespace lockstep::bench {

struct Spread {
  double median = 0, least = 0, most = 0;
};

/// Zeros where there are no values. The median of an even number of values is the mean of the middle two.
Spread spread_of(std::vector<double> values);

}  // namespace lockstep::bench
