#include "lockstep/shm/reduce/reduce.h"

#include <iterator>

#include "lockstep/shm/reduce/reduce_kernels.h"

namespace lockstep::shm {

namespace {

/// `Wide`: of 64 bits, with T's sign. Sums of narrow integers would not fit their dtype.
template <class T, class Wide>
void average(const void* const* sources, size_t ranks, void* const* destinations, size_t destination_count,
             size_t count) {
  for (size_t i = 0; i < count; ++i) {
    uint64_t sum = 0;  // unsigned: the same bits, and it may wrap around
    for (size_t r = 0; r < ranks; ++r) sum += static_cast<uint64_t>(static_cast<const T*>(sources[r])[i]);
    const auto mean =
        static_cast<T>(static_cast<Wide>(sum) / static_cast<Wide>(ranks));  // NOLINT(*DivideZero)
    for (size_t d = 0; d < destination_count; ++d) static_cast<T*>(destinations[d])[i] = mean;
  }
}

void average_integers(DType dtype, const void* const* sources, size_t ranks, void* const* destinations,
                      size_t destination_count, size_t count) {
  switch (dtype) {
    case DType::int8:
      return average<int8_t, int64_t>(sources, ranks, destinations, destination_count, count);
    case DType::uint8:
      return average<uint8_t, uint64_t>(sources, ranks, destinations, destination_count, count);
    case DType::int16:
      return average<int16_t, int64_t>(sources, ranks, destinations, destination_count, count);
    case DType::int32:
      return average<int32_t, int64_t>(sources, ranks, destinations, destination_count, count);
    case DType::int64:
      return average<int64_t, int64_t>(sources, ranks, destinations, destination_count, count);
    case DType::uint16:
      return average<uint16_t, uint64_t>(sources, ranks, destinations, destination_count, count);
    case DType::uint32:
      return average<uint32_t, uint64_t>(sources, ranks, destinations, destination_count, count);
    case DType::uint64:
      return average<uint64_t, uint64_t>(sources, ranks, destinations, destination_count, count);
    default:
      return;  // is_supported() is false: callers refuse them
  }
}

}  // namespace

void reduce(DType dtype, ReduceOp reduction, const void* const* sources, size_t ranks,
            void* const* destinations, size_t destination_count, size_t count) {
  if (reduction == ReduceOp::AVG && dtype > DType::bfloat16) {
    return average_integers(dtype, sources, ranks, destinations, destination_count, count);
  }
  const auto half = dtype <= DType::bfloat16 ? reduce_floats : reduce_integers;
  half(dtype, reduction, sources, ranks, destinations, destination_count, count);
}

const char* dtype_name(DType dtype) {
  constexpr const char* kNames[] = {
      "float32",     "float64",         "float16",       "bfloat16",   "int8",          "uint8",
      "int16",       "int32",           "int64",         "uint16",     "uint32",        "uint64",
      "bool",        "complex32",       "complex64",     "complex128", "float8_e4m3fn", "float8_e4m3fnuz",
      "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"};
  return static_cast<size_t>(dtype) < std::size(kNames) ? kNames[static_cast<size_t>(dtype)]
                                                        : "unknown dtype";
}

const char* reduction_name(ReduceOp reduction) {
  constexpr const char* kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                    "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  return static_cast<size_t>(reduction) < std::size(kNames) ? kNames[static_cast<size_t>(reduction)]
                                                            : "unknown";
}

bool is_supported(DType dtype, ReduceOp reduction) {
  const bool floating = dtype == DType::float32 || dtype == DType::float64 || dtype == DType::float16 ||
                        dtype == DType::bfloat16;
  switch (reduction) {
    case ReduceOp::AVG:
      return dtype < DType::boolean;
    case ReduceOp::PREMUL_SUM:
      return floating;
    case ReduceOp::BAND:
    case ReduceOp::BOR:
    case ReduceOp::BXOR:
      return !floating && dtype <= DType::boolean;
    default:
      return dtype <= DType::boolean;
  }
}

}  // namespace lockstep::shm
