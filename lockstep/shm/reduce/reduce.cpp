#include "lockstep/shm/reduce/reduce.h"

#include <iterator>

#include "lockstep/shm/reduce/reduce_kernels.h"

namespace lockstep::shm {

void reduce(DType dtype, ReduceOp reduction, const void* const* sources, size_t ranks,
            void* const* destinations, size_t destination_count, size_t count) {
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
