#include "lockstep/optim/zero_partition.h"

#include <algorithm>
#include <numeric>

namespace lockstep::detail {

std::vector<std::vector<std::vector<size_t>>> partition_greedily(
    const std::vector<std::vector<int64_t>>& sizes, int ranks) {
  const auto count = static_cast<size_t>(ranks);
  std::vector<std::vector<std::vector<size_t>>> partition(count,
                                                          std::vector<std::vector<size_t>>(sizes.size()));
  std::vector<int64_t> loads(count);
  for (size_t group = 0; group < sizes.size(); ++group) {
    std::vector<size_t> largest_first(sizes[group].size());
    std::iota(largest_first.begin(), largest_first.end(), size_t{0});
    std::stable_sort(largest_first.begin(), largest_first.end(),
                     [&](size_t a, size_t b) { return sizes[group][a] > sizes[group][b]; });
    for (const size_t parameter : largest_first) {
      const auto rank = static_cast<size_t>(std::min_element(loads.begin(), loads.end()) - loads.begin());
      partition[rank][group].push_back(parameter);
      loads[rank] += sizes[group][parameter];
    }
  }
  return partition;
}

ElementRange slice_of_parameter(int64_t elements, int64_t chunk, size_t index, int rank, int ranks) {
  const int64_t chunks = (elements + chunk - 1) / chunk;
  const auto place = static_cast<int64_t>((static_cast<size_t>(rank) + index) % static_cast<size_t>(ranks));
  const auto start = [&](int64_t slice) { return std::min(chunks * slice / ranks * chunk, elements); };
  return {start(place), start(place + 1)};
}

}  // namespace lockstep::detail
