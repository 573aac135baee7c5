#include "lockstep/data/token_batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep {

std::vector<std::vector<int64_t>> batches_by_tokens(const std::vector<int64_t>& lengths, int64_t max_tokens) {
  if (max_tokens < 1) throw ValueError(fmt::format("max_tokens is {}; it must be 1 or more", max_tokens));
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  const auto length = [&](int64_t sample) { return lengths[static_cast<size_t>(sample)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return length(a) < length(b); });
  std::vector<std::vector<int64_t>> batches;
  for (const int64_t sample : order) {
    const bool fits =
        !batches.empty() && (static_cast<int64_t>(batches.back().size()) + 1) * length(sample) <= max_tokens;
    if (!fits) batches.emplace_back();
    batches.back().push_back(sample);
  }
  return batches;
}

}  // namespace lockstep
