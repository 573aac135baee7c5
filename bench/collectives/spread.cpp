#include "bench/collectives/spread.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep::bench {

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {(values[values.size() / 2] + values[(values.size() - 1) / 2]) / 2, values.front(), values.back()};
}

std::string three_digits(double value) {
  if (!std::isfinite(value) || value <= 0) return fmt::format("{}", value);
  constexpr int kDigits = 3;
  int decimals = kDigits - 1 - static_cast<int>(std::floor(std::log10(value)));
  const double rounded = std::round(value * std::pow(10, decimals)) / std::pow(10, decimals);
  decimals = kDigits - 1 - static_cast<int>(std::floor(std::log10(rounded)));  // 9.996 is 10.0
  return fmt::format("{:.{}f}", rounded, std::max(decimals, 0));
}

std::string text_of(const Spread& spread) {
  return fmt::format("{} ({} to {})", three_digits(spread.median), three_digits(spread.least),
                     three_digits(spread.most));
}

}  // namespace lockstep::bench
