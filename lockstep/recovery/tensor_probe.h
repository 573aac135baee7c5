// Whether tensors have been written, without a copy of them: a look at a few of their elements.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::detail {

/// So many elements of each tensor are looked at.
inline constexpr size_t kProbedElements = 16;

/// A hash of what `hash` is of and of `value`.
inline uint64_t mix(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 0x9E3779B97F4A7C15ULL + (hash >> 29U);
}

/// Can its elements be looked at where they lie?
bool is_plain(const at::Tensor& tensor);

/// Those of one element of a plain tensor.
uint64_t bits_at(const at::Tensor& tensor, size_t place);

/// The `i`-th of `wanted` places, spread over all elements.
size_t spread(const at::Tensor& tensor, size_t i, size_t wanted);

/// Some elements of `tensor`, and its version, which writes through .data leave alone.
uint64_t probe_of(const at::Tensor& tensor);
uint64_t probe_of(const std::vector<at::Tensor>& tensors);

}  // namespace lockstep::detail
