// What the ranks of a test give, and what comes of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <vector>

namespace lockstep::testing {

inline at::Tensor of(int rank, int64_t count) {
  return at::arange(count, at::kFloat).remainder(31).add(rank * 100);
}

/// Sum of of() over `ranks`.
inline at::Tensor sum_of(const std::vector<int>& ranks, int64_t count) {
  at::Tensor sum = at::zeros({count});
  for (const int rank : ranks) sum += of(rank, count);
  return sum;
}

}  // namespace lockstep::testing
