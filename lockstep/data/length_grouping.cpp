#include "lockstep/data/length_grouping.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/data/sampler.h"

namespace lockstep {

std::vector<int64_t> length_grouped_indices(const std::vector<int64_t>& lengths, int64_t batch_size,
                                            at::Generator generator) {
  if (lengths.empty()) throw ValueError("the dataset has 0 samples; expected at least one");
  if (batch_size < 1) throw ValueError(fmt::format("batch_size is {}; expected at least 1", batch_size));
  const auto size = static_cast<int64_t>(lengths.size());
  const auto length = [&](int64_t sample) { return lengths[static_cast<size_t>(sample)]; };

  const auto permutation = at::randperm(size, std::move(generator), at::TensorOptions(at::kLong));
  const auto* drawn = permutation.const_data_ptr<int64_t>();
  std::vector<int64_t> indices(drawn, drawn + size);

  const int64_t mega_batch = std::clamp<int64_t>(size / (batch_size * 4), 1, 50) * batch_size;
  auto longest = indices.begin();
  for (int64_t first = 0; first < size; first += mega_batch) {
    const auto begin = indices.begin() + first;
    const auto end = indices.begin() + std::min(first + mega_batch, size);
    std::stable_sort(begin, end, [&](int64_t a, int64_t b) { return length(a) > length(b); });
    if (length(*begin) > length(*longest)) longest = begin;
  }
  std::iter_swap(indices.begin(), longest);
  return indices;
}

std::vector<int64_t> length_grouped_indices(const std::vector<int64_t>& lengths, int64_t batch_size,
                                            uint64_t seed) {
  return length_grouped_indices(lengths, batch_size, at::detail::createCPUGenerator(seed));
}

}  // namespace lockstep
