#include "lockstep/optim/memory/chunk_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "lockstep/base/error.h"

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

/// How the values of a chunk, and then those of the chunks, are put together.
struct Extreme {
  static bool is(double norm_type) { return std::isinf(norm_type); }
  /// A value that is not a number stays, as in at::linalg_vector_norm.
  static double of(double norm_type, double a, double b) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
    return norm_type > 0 ? std::max(a, b) : std::min(a, b);
  }
};

template <class T>
double power_sum(const T* values, int64_t count, double norm_type) {
  double total = std::fabs(static_cast<double>(values[0]));
  if (Extreme::is(norm_type)) {
    for (int64_t i = 1; i < count; ++i) {
      total = Extreme::of(norm_type, total, std::fabs(static_cast<double>(values[i])));
    }
    return total;
  }
  total = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double size = std::fabs(static_cast<double>(values[i]));
    if (norm_type == 0) {
      total += size == 0 ? 0 : 1;
    } else {
      total += norm_type == 1 ? size : std::pow(size, norm_type);
    }
  }
  return total;
}

template <class T>
double chunk_sum(const T* values, int64_t count, double norm_type) {
  return norm_type == 2 ? square_sum(values, count) : power_sum(values, count, norm_type);
}

/// Elements of any dtype as doubles of the same size: the parts of a complex number will do for squares.
at::Tensor as_doubles(const at::Tensor& elements, double norm_type) {
  if (!elements.is_complex()) return elements.to(at::kDouble);
  const at::Tensor exact = elements.resolve_conj().to(at::kComplexDouble);
  return norm_type == 2 ? at::view_as_real(exact) : exact.abs();
}

}  // namespace

at::Tensor in_memory_order(const at::Tensor& tensor) {
  if (!tensor.is_non_overlapping_and_dense()) return tensor.reshape(-1);
  return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

void sum_powers(const at::Tensor& flat, double norm_type, double* sums) {
  constexpr int64_t kGrain = 64;
  const int64_t elements = flat.numel();
  at::parallel_for(0, norm_chunks(elements), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kNormChunk;
      const int64_t count = std::min(kNormChunk, elements - first);
      if (flat.scalar_type() == at::kFloat) {
        sums[chunk] = chunk_sum(flat.const_data_ptr<float>() + first, count, norm_type);
      } else {
        const at::Tensor part = as_doubles(flat.narrow(0, first, count), norm_type);
        sums[chunk] = chunk_sum(part.const_data_ptr<double>(), part.numel(), norm_type);
      }
    }
  });
}

std::vector<double> sum_powers_on_device(const std::vector<at::Tensor>& tensors, double norm_type) {
  std::vector<double> sums;
  if (tensors.empty()) return sums;
  std::vector<at::Tensor> norms;
  for (const at::Tensor& tensor : tensors) {
    const at::ScalarType dtype = tensor.is_complex() ? at::kComplexDouble : at::kDouble;
    norms.push_back(at::linalg_vector_norm(tensor, norm_type, std::nullopt, /*keepdim=*/false, dtype)
                        .to(tensors.front().device()));
  }
  const at::Tensor all = at::stack(norms).cpu();  // one wait for the device
  const bool is_power = !Extreme::is(norm_type) && norm_type != 0 && norm_type != 1;
  const auto* const values = all.const_data_ptr<double>();
  for (size_t t = 0; t < tensors.size(); ++t)
    sums.push_back(is_power ? std::pow(values[t], norm_type) : values[t]);
  return sums;
}

double norm_of_chunks(const std::vector<double>& sums, const std::vector<size_t>& chunks, double norm_type) {
  if (sums.empty()) return 0;
  if (Extreme::is(norm_type)) {
    double total = sums[0];
    for (const double sum : sums) total = Extreme::of(norm_type, total, sum);
    return total;
  }
  std::vector<double> of_tensors;
  size_t next = 0;
  for (const size_t count : chunks) {
    double sum = 0;
    for (const size_t end = next + count; next < end; ++next) sum += sums[next];
    if (std::isnan(sum)) return sum;
    of_tensors.push_back(norm_type == 0 && sum > 0 ? 1 : sum);
  }
  std::sort(of_tensors.begin(), of_tensors.end());
  double total = 0;
  for (const double sum : of_tensors) total += sum;
  if (norm_type == 2) return std::sqrt(total);
  return norm_type == 0 || norm_type == 1 ? total : std::pow(total, 1 / norm_type);
}

void check_norm(double norm, bool error_if_nonfinite) {
  if (!error_if_nonfinite || std::isfinite(norm)) return;
  throw Error(
      fmt::format("clip_grad_norm_: the total norm of the gradients is {}, so they cannot be clipped; leave "
                  "error_if_nonfinite out to scale them all the same",
                  norm));
}

}  // namespace lockstep::detail
