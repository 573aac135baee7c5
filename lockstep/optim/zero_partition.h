// Which rank updates what: pure decisions, the same on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::detail {

/// [rank][group][i]: numbers, within their group, of the parameters that a rank updates. As Python's
/// ZeroRedundancyOptimizer: group by group, the largest first, each to the rank that has fewest elements.
/// `sizes`: elements by group and parameter.
std::vector<std::vector<std::vector<size_t>>> partition_greedily(
    const std::vector<std::vector<int64_t>>& sizes, int ranks);

/// Elements [begin, end) of a parameter, in the order of memory.
struct ElementRange {
  int64_t begin, end;
};

/// The part of parameter number `index` that `rank` updates where parameters are divided: whole chunks, so
/// that neither a norm's chunk nor a vector register spans two ranks. What is smaller goes round the ranks.
ElementRange slice_of_parameter(int64_t elements, int64_t chunk, size_t index, int rank, int ranks);

}  // namespace lockstep::detail
