// The arithmetic of a reduction over ranks: fixed order, run-time choice of vector instructions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/base/reduce_op.h"

namespace lockstep::shm {

/// Those after boolean can be moved but not reduced.
enum class DType : uint8_t {
  float32,
  float64,
  float16,
  bfloat16,
  int8,
  uint8,
  int16,
  int32,
  int64,
  uint16,
  uint32,
  uint64,
  boolean,
  complex32,
  complex64,
  complex128,
  float8_e4m3fn,
  float8_e4m3fnuz,
  float8_e5m2,
  float8_e5m2fnuz,
  float8_e8m0fnu
};

constexpr size_t element_size(DType dtype) {
  constexpr uint8_t kBytes[] = {4, 8, 2, 2, 1, 1, 2, 4, 8, 2, 4, 8, 1, 4, 8, 16, 1, 1, 1, 1, 1};
  return kBytes[static_cast<size_t>(dtype)];
}
const char* dtype_name(DType dtype);
const char* reduction_name(ReduceOp reduction);
/// AVG needs a floating-point or integer dtype, PREMUL_SUM a floating-point one, the bitwise ones an integer or
/// boolean. Those after boolean have none.
bool is_supported(DType dtype, ReduceOp reduction);

/// For every i in [0, count): combines sources[0][i] .. sources[ranks-1][i] and stores the result in every
/// destinations[d][i]; PREMUL_SUM adds like SUM: who calls it has multiplied before. Sources and destinations
/// may be the same buffers.
///
/// Sums and products are a balanced binary tree over the ranks, split at the largest power of two below their
/// number:
/// ((0+1)+(2+3))+((4+5)+(6+7)). float32, float16 and bfloat16 are added in float32, float64 in float64; AVG
/// divides the sum once; float16 and bfloat16 are rounded once, at the end (to nearest, ties to even). So the
/// bits depend on nothing but the values. MIN and MAX return NaN where any rank has one. AVG of integers adds in
/// 64 bits, which wrap around, and divides with truncation toward zero.
/// Sum and max of booleans are "or", product and min are "and".
void reduce(DType dtype, ReduceOp reduction, const void* const* sources, size_t ranks,
            void* const* destinations, size_t destination_count, size_t count);

}  // namespace lockstep::shm
