#include "tools/bench/timeline_cost.h"

#include <algorithm>
#include <cmath>

namespace lockstep::tools {
namespace {

/// `values` are sorted here.
double middle(std::vector<double>& values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return (values[values.size() / 2] + values[(values.size() - 1) / 2]) / 2;
}

}  // namespace

TimelineCost timeline_cost(const std::vector<std::vector<double>>& rounds, size_t block) {
  std::vector<double> without, differences;
  for (const std::vector<double>& steps : rounds) {
    for (size_t unit = 0; unit + 4 * block <= steps.size(); unit += 4 * block) {
      std::vector<double> with_it, without_it;
      for (size_t step = unit; step < unit + 4 * block; ++step) {
        (is_recorded(step, block) ? with_it : without_it).push_back(steps[step]);
      }
      without.push_back(middle(without_it));
      differences.push_back(middle(with_it) - without.back());
    }
  }
  TimelineCost cost;
  cost.units = differences.size();
  if (differences.empty()) return cost;
  cost.without = middle(without);
  cost.added = middle(differences);
  // The median lies between these two of the sorted values in 95 of 100 cases, whatever their distribution.
  const double half = 0.98 * std::sqrt(static_cast<double>(differences.size()));
  const double centre = static_cast<double>(differences.size() - 1) / 2;
  const auto at = [&](double place) {
    return differences[static_cast<size_t>(
        std::clamp(place, 0.0, static_cast<double>(differences.size() - 1)))];
  };
  cost.least = at(std::floor(centre - half));
  cost.most = at(std::ceil(centre + half));
  return cost;
}

}  // namespace lockstep::tools
