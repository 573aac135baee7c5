// A figure over the rounds of a benchmark.
#pragma once

#include <string>
#include <vector>

namespace lockstep::bench {

struct Spread {
  double median = 0, least = 0, most = 0;
};

/// Zeros where there are no values. The median of an even number of values is the mean of the middle two.
Spread spread_of(std::vector<double> values);

/// A number that is 0 or more, rounded to three significant digits, without an exponent: 4096.39 is "4100".
std::string three_digits(double value);

/// "median (min to max)", each of three significant digits.
std::string text_of(const Spread& spread);

}  // namespace lockstep::bench
