#include "lockstep/comm/uplink/accumulation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace lockstep::uplink {
namespace {

using shm::DType;

bool is_half(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }
bool is_float(DType dtype) { return is_half(dtype) || dtype == DType::float32 || dtype == DType::float64; }
bool adds(ReduceOp op) { return op == ReduceOp::SUM || op == ReduceOp::AVG || op == ReduceOp::PREMUL_SUM; }

DType choose_partial(DType dtype, ReduceOp op) {
  if (is_half(dtype) && (adds(op) || op == ReduceOp::PRODUCT)) return DType::float32;
  if (!is_float(dtype) && op == ReduceOp::AVG) return dtype == DType::uint64 ? dtype : DType::int64;
  return dtype;
}

float from_bfloat16(uint16_t stored) { return std::bit_cast<float>(static_cast<uint32_t>(stored) << 16); }
uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  // Rounding could carry a NaN into infinity: it stays a quiet NaN.
  if (value != value) return static_cast<uint16_t>((bits | 0x400000U) >> 16);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

float from_float16(uint16_t stored) {
  const uint32_t sign = (stored & 0x8000U) << 16, magnitude = stored & 0x7FFFU;
  if (magnitude >= 0x7C00U) {  // infinity and NaN, which becomes quiet
    const uint32_t quiet = magnitude > 0x7C00U ? 0x400000U : 0U;
    return std::bit_cast<float>(sign | 0x7F800000U | ((magnitude & 0x3FFU) << 13) | quiet);
  }
  // The exponent's bias differs by 112; a product with a power of two makes subnormal numbers normal.
  return std::bit_cast<float>(std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112F) |
                              sign);
}
uint16_t to_float16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x3FFU));
  }
  if (magnitude >= 0x477FF000U) return static_cast<uint16_t>(sign | 0x7C00U);  // rounds to 65536 or more
  if (magnitude < 0x38800000U) {
    // Subnormal: the sum with 0.5 has its last bit where theirs is, and is rounded as any sum.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000U));
  }
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13));
}

template <class From, class To, class Convert>
void convert(const void* from, void* to, size_t count, const Convert& each) {
  const auto* const source = static_cast<const From*>(from);
  auto* const target = static_cast<To*>(to);
  for (size_t i = 0; i < count; ++i) target[i] = each(source[i]);
}

template <class T>
void divide(const void* sums, void* quotients, size_t count, T by) {
  const auto* const each = static_cast<const T*>(sums);
  auto* const to = static_cast<T*>(quotients);
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<T>(each[i] / by);
}

template <class Int>
void narrow(const void* sums, void* results, size_t count) {
  convert<int64_t, Int>(sums, results, count, [](int64_t sum) { return static_cast<Int>(sum); });
}
template <class Int>
void widen_as(const void* from, void* to, size_t count) {
  convert<Int, int64_t>(from, to, count, [](Int value) { return static_cast<int64_t>(value); });
}

}  // namespace

bool Accumulation::can_narrow(DType dtype, ReduceOp op) {
  return adds(op) && (is_half(dtype) || dtype == DType::float32);
}

Accumulation::Accumulation(DType dtype, ReduceOp op, size_t ranks, WireForm form)
    : dtype_(dtype),
      partial_dtype_(choose_partial(dtype, op)),
      op_(op),
      partial_op_(adds(op) ? ReduceOp::SUM : op),
      ranks_(ranks),
      form_(form) {}

void Accumulation::widen(const void* from, void* to, size_t count) const {
  if (!is_widened()) {
    std::memcpy(to, from, count * element_bytes());
    return;
  }
  switch (dtype_) {
    case DType::float16:
      return convert<uint16_t, float>(from, to, count, from_float16);
    case DType::bfloat16:
      return convert<uint16_t, float>(from, to, count, from_bfloat16);
    case DType::int8:
      return widen_as<int8_t>(from, to, count);
    case DType::uint8:
      return widen_as<uint8_t>(from, to, count);
    case DType::int16:
      return widen_as<int16_t>(from, to, count);
    case DType::uint16:
      return widen_as<uint16_t>(from, to, count);
    case DType::int32:
      return widen_as<int32_t>(from, to, count);
    case DType::uint32:
      return widen_as<uint32_t>(from, to, count);
    default:
      return;  // no other dtype is widened
  }
}

void Accumulation::pack(const void* from, void* to, size_t count) const {
  if (is_narrowed()) return convert<float, uint16_t>(from, to, count, to_bfloat16);
  std::memcpy(to, from, count * partial_bytes());
}

void Accumulation::unpack(const void* from, void* to, size_t count) const {
  if (is_narrowed()) return convert<uint16_t, float>(from, to, count, from_bfloat16);
  std::memcpy(to, from, count * partial_bytes());
}

void Accumulation::add(const void* a, const void* b, void* to, size_t count) const {
  const std::array<const void*, 2> sources{a, b};
  shm::reduce(partial_dtype_, partial_op_, sources.data(), 2, &to, 1, count);
}

void Accumulation::finish(void* sums, void* results, size_t count) const {
  if (op_ == ReduceOp::AVG) {
    void* const quotients = is_widened() ? sums : results;
    switch (partial_dtype_) {
      case DType::float32:
        divide<float>(sums, quotients, count, static_cast<float>(ranks_));
        break;
      case DType::float64:
        divide<double>(sums, quotients, count, static_cast<double>(ranks_));
        break;
      case DType::uint64:
        divide<uint64_t>(sums, quotients, count, ranks_);
        break;
      default:
        divide<int64_t>(sums, quotients, count, static_cast<int64_t>(ranks_));
        break;
    }
    sums = quotients;
  }
  if (!is_widened()) {
    if (results != sums) std::memcpy(results, sums, count * element_bytes());
    return;
  }
  switch (dtype_) {
    case DType::float16:
      return convert<float, uint16_t>(sums, results, count, to_float16);
    case DType::bfloat16:
      return convert<float, uint16_t>(sums, results, count, to_bfloat16);
    case DType::int8:
      return narrow<int8_t>(sums, results, count);
    case DType::uint8:
      return narrow<uint8_t>(sums, results, count);
    case DType::int16:
      return narrow<int16_t>(sums, results, count);
    case DType::uint16:
      return narrow<uint16_t>(sums, results, count);
    case DType::int32:
      return narrow<int32_t>(sums, results, count);
    case DType::uint32:
      return narrow<uint32_t>(sums, results, count);
    default:
      return;
  }
}

}  // namespace lockstep::uplink
