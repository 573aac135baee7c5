// Whether tensors have been written, without a copy of them: a look at a few of their elements.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
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

/// The elements of a plain tensor. Looked at in every step: nothing here calls or divides by what the compiler does not know.
class Elements {
 public:
  explicit Elements(const at::Tensor& tensor);
  size_t size() const { return count_; }
  /// So many are looked at.
  size_t probed() const { return probed_; }
  /// The `i`-th of the probed() places, spread over all elements.
  size_t place(size_t i) const {
    return probed_ == kProbedElements ? (count_ - 1) * i / (kProbedElements - 1) : i;
  }
  /// The first 8 bytes of the element at `place`, at most.
  uint64_t bits(size_t place) const {
    const std::byte* const at = data_ + place * element_;
    switch (element_) {
      case 1:
        return read<uint8_t>(at);
      case 2:
        return read<uint16_t>(at);
      case 4:
        return read<uint32_t>(at);
      default:
        return read<uint64_t>(at);
    }
  }
  /// Is it 0, or -0.0?
  bool is_zero(size_t place) const {
    const size_t sign = 8 * (element_ < 8 ? element_ : 8) - 1;
    return (bits(place) & ~(uint64_t{1} << sign)) == 0;
  }

 private:
  template <class Bits>
  static uint64_t read(const std::byte* at) {
    Bits bits{};
    std::memcpy(&bits, at, sizeof bits);
    return bits;
  }
  const std::byte* data_;
  size_t element_, count_, probed_;
};

/// Some elements of `tensor`, and its version, which writes through .data leave alone.
uint64_t probe_of(const at::Tensor& tensor);
uint64_t probe_of(const std::vector<at::Tensor>& tensors);

}  // namespace lockstep::detail
