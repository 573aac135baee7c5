#include "lockstep/optim/chunk_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <cmath>

namespace lockstep::detail {
namespace {

/// In eight lanes, which unrolling keeps in registers. A product of two floats is exact in double.
template <class T>
double square_sum(const T* values, int64_t count) {
  constexpr int64_t kLanes = 8;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma GCC unroll 8
    for (int64_t l = 0; l < kLanes; ++l) {
      const auto value = static_cast<double>(values[i + l]);
      lanes[l] += value * value;
    }
  }
  for (int64_t l = 0; i < count; ++i, ++l) {
    const auto value = static_cast<double>(values[i]);
    lanes[l] += value * value;
  }
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

}  // namespace

at::Tensor in_memory_order(const at::Tensor& tensor) {
  if (!tensor.is_non_overlapping_and_dense()) return tensor.reshape(-1);
  return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

void sum_squares(const at::Tensor& flat, double* sums) {
  constexpr int64_t kGrain = 64;
  const int64_t elements = flat.numel();
  at::parallel_for(0, norm_chunks(elements), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kNormChunk;
      const int64_t count = std::min(kNormChunk, elements - first);
      if (flat.scalar_type() == at::kFloat) {
        sums[chunk] = square_sum(flat.const_data_ptr<float>() + first, count);
      } else {
        const at::Tensor elements_of_chunk = flat.narrow(0, first, count);
        const at::Tensor part =
            (flat.is_complex() ? at::view_as_real(elements_of_chunk.resolve_conj()) : elements_of_chunk)
                .to(at::kDouble);
        sums[chunk] = square_sum(part.const_data_ptr<double>(), part.numel());
      }
    }
  });
}

double norm_of_chunks(const std::vector<double>& sums, const std::vector<size_t>& chunks) {
  std::vector<double> of_tensors;
  size_t next = 0;
  for (const size_t count : chunks) {
    double sum = 0;
    for (const size_t end = next + count; next < end; ++next) sum += sums[next];
    if (std::isnan(sum)) return sum;
    of_tensors.push_back(sum);
  }
  std::sort(of_tensors.begin(), of_tensors.end());
  double total = 0;
  for (const double sum : of_tensors) total += sum;
  return std::sqrt(total);
}

}  // namespace lockstep::detail
