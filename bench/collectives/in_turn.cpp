#include "bench/collectives/in_turn.h"

#include <algorithm>
#include <cmath>

#include "bench/collectives/spread.h"

namespace lockstep::bench {

Added added_in_turn(const std::vector<std::vector<double>>& rounds, size_t block) {
  std::vector<double> without, differences;
  for (const std::vector<double>& steps : rounds) {
    for (size_t unit = 0; unit + 4 * block <= steps.size(); unit += 4 * block) {
      std::vector<double> with_it, without_it;
      for (size_t step = unit; step < unit + 4 * block; ++step) {
        (is_with(step, block) ? with_it : without_it).push_back(steps[step]);
      }
      without.push_back(spread_of(without_it).median);
      differences.push_back(spread_of(with_it).median - without.back());
    }
  }
  Added added;
  added.units = differences.size();
  if (differences.empty()) return added;
  added.without = spread_of(without).median;
  added.seconds = spread_of(differences).median;
  // The median lies between these two of the sorted values in 95 of 100 cases, whatever their distribution.
  std::sort(differences.begin(), differences.end());
  const double half = 0.98 * std::sqrt(static_cast<double>(differences.size()));
  const double center = static_cast<double>(differences.size() - 1) / 2;
  const auto at = [&](double place) {
    return differences[static_cast<size_t>(
        std::clamp(place, 0.0, static_cast<double>(differences.size() - 1)))];
  };
  added.least = at(std::floor(center - half));
  added.most = at(std::ceil(center + half));
  return added;
}

}  // namespace lockstep::bench
