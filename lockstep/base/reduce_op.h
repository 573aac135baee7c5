// How a reduction combines the ranks' elements.
#pragma once

#include <cstdint>

namespace lockstep {

/// SUM, PRODUCT, MIN, MAX: every dtype; of booleans SUM and MAX are "or", PRODUCT and MIN "and". AVG divides
/// once, after the sum: every dtype but bool; of integers it adds in 64 bits and truncates the quotient toward
/// zero, as NCCL does. PREMUL_SUM multiplies each rank's elements by that rank's `premul_factor` (rounding
/// to the dtype) before the sum: floating-point dtypes only. BAND, BOR, BXOR: integers and booleans. Complex
/// tensors: SUM, AVG and PREMUL_SUM. Integers wrap around.
enum class ReduceOp : uint8_t { SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM };

}  // namespace lockstep
