#include "tools/bench/spread.h"

#include <algorithm>

namespace lockstep::bench {

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {(values[values.size() / 2] + values[(values.size() - 1) / 2]) / 2, values.front(), values.back()};
}

}  // namespace lockstep::bench
