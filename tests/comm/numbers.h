// What the ranks of a test give, and what comes of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

namespace lockstep::testing {

/// `value` of the indices 0 to count - 1, as one tensor of whole numbers. It repeats itself after `period` elements, so that a
/// large tensor needs no division for each of its elements.
template <class Value>
at::Tensor periodic(int64_t count, int64_t period, const Value& value) {
  const at::Tensor first = value(at::arange(std::min(count, period), at::kLong));
  return count <= period ? first : first.repeat({count / period + 1}).narrow(0, 0, count);
}

inline at::Tensor of(int rank, int64_t count) {
  return periodic(
      count, 31, [&](const at::Tensor& index) { return index.remainder(31).to(at::kFloat).add(rank * 100); });
}

/// Sum of of() over `ranks`.
inline at::Tensor sum_of(const std::vector<int>& ranks, int64_t count) {
  at::Tensor sum = at::zeros({count});
  for (const int rank : ranks) sum += of(rank, count);
  return sum;
}

}  // namespace lockstep::testing
