// Contents of the fuzz test's operations: functions of seed, operation, rank and position.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "lockstep/shm/reduce/reduce.h"

namespace lockstep::shm {

using Bytes = std::vector<std::byte>;

/// Byte or small number `i` of what goes by `key`.
inline uint32_t digits(uint64_t key, size_t i) {
  return (static_cast<uint32_t>(i) * 2654435761U + static_cast<uint32_t>(key)) ^
         static_cast<uint32_t>(key >> 32);
}
inline uint64_t key_of(uint64_t seed, uint64_t number, int rank) {
  uint64_t key = (seed * 1000003 + number) * 257 + static_cast<uint64_t>(rank) + 1;
  key = (key ^ key >> 31) * 0x9E3779B97F4A7C15ULL;
  return key ^ key >> 29;
}
inline void fill_bytes(std::byte* data, size_t bytes, uint64_t key) {
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(digits(key, i) >> 23);
}

/// data[i] = f(i) as `dtype`, which holds it exactly.
template <class F>
void fill_numbers(DType dtype, std::byte* data, size_t count, const F& f) {
  const auto as = [&](auto zero) {
    auto* const to = reinterpret_cast<decltype(zero)*>(data);
    for (size_t i = 0; i < count; ++i) {
      if constexpr (std::is_floating_point_v<decltype(zero)>) {
        to[i] = static_cast<decltype(zero)>(f(i));
      } else {
        to[i] = static_cast<decltype(zero)>(static_cast<uint64_t>(f(i)));  // an integer wraps
      }
    }
  };
  switch (dtype) {
    case DType::float32:
      return as(float{});
    case DType::float64:
      return as(double{});
    case DType::int32:
      return as(int32_t{});
    case DType::int64:
      return as(int64_t{});
    case DType::uint8:
      return as(uint8_t{});
    default:  // bfloat16
      for (size_t i = 0; i < count; ++i) {
        const auto value = static_cast<float>(f(i));
        std::memcpy(data + 2 * i, reinterpret_cast<const std::byte*>(&value) + 2, 2);
      }
  }
}

inline uint64_t combine(ReduceOp reduction, uint64_t a, uint64_t b) {
  switch (reduction) {
    case ReduceOp::PRODUCT:
      return a * b;
    case ReduceOp::MIN:
      return std::min(a, b);
    case ReduceOp::MAX:
      return std::max(a, b);
    case ReduceOp::BAND:
      return a & b;
    case ReduceOp::BOR:
      return a | b;
    case ReduceOp::BXOR:
      return a ^ b;
    default:
      return a + b;
  }
}

/// What a rank gives to reduction `number`, and what comes of it.
struct Numbers {
  uint64_t seed, number;
  DType dtype;
  ReduceOp reduction;
  int ranks;
  uint64_t given(uint64_t key, size_t i) const {
    const uint32_t digit = digits(key, i) >> 28;
    return reduction == ReduceOp::PRODUCT ? 1 + (digit & 1) : digit;
  }
  void give(std::byte* data, size_t count, int rank) const {
    const uint64_t key = key_of(seed, number, rank);
    fill_numbers(dtype, data, count, [&](size_t i) { return given(key, i); });
  }
  Bytes result(size_t first, size_t count) const {
    std::vector<uint64_t> keys;
    for (int r = 0; r < ranks; ++r) keys.push_back(key_of(seed, number, r));
    Bytes expected(count * element_size(dtype));
    fill_numbers(dtype, expected.data(), count, [&](size_t i) -> double {
      uint64_t value = given(keys[0], first + i);
      for (size_t r = 1; r < keys.size(); ++r) value = combine(reduction, value, given(keys[r], first + i));
      if (reduction != ReduceOp::AVG) return static_cast<double>(value);
      return dtype == DType::float32 ? static_cast<float>(value) / static_cast<float>(ranks)
                                     : static_cast<double>(value) / ranks;
    });
    return expected;
  }
};

}  // namespace lockstep::shm
