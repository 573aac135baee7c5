// A piece of this process's memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace lockstep::base {

/// From its first byte to behind its last one; empty at first.
struct Extent {
  uintptr_t begin = 0, end = 0;

  static Extent of(const void* memory, size_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    return bytes == 0 ? Extent{} : Extent{begin, begin + bytes};
  }
  bool is_empty() const { return begin == end; }
  /// Do both have a byte in common?
  bool meets(const Extent& other) const { return begin < other.end && other.begin < end; }
  /// The smallest that contains both.
  Extent joined(const Extent& other) const {
    if (is_empty()) return other;
    if (other.is_empty()) return *this;
    return {std::min(begin, other.begin), std::max(end, other.end)};
  }
};

}  // namespace lockstep::base
