// Whole numbers and booleans; see reduce_kernels-inl.h.
#include "lockstep/shm/reduce/reduce_targets.h"
//
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lockstep/shm/reduce/reduce_integers.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>
//
#include "lockstep/shm/reduce/reduce_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::shm {
namespace HWY_NAMESPACE {

template <class Unsigned, class Signed>
void run_unsigned(ReduceOp reduction, const void* const* sources, size_t ranks, void* const* destinations,
                  size_t destination_count, size_t count) {
  const auto* from = reinterpret_cast<const Unsigned* const*>(sources);
  const auto* to = reinterpret_cast<Unsigned* const*>(destinations);
  switch (reduction) {
    case ReduceOp::MIN:
      return run<Native<Unsigned>, Min, 0>(from, ranks, to, destination_count, count, false);
    case ReduceOp::MAX:
      return run<Native<Unsigned>, Max, 0>(from, ranks, to, destination_count, count, false);
    default:
      return run_type<Native<Signed>>(reduction, sources, ranks, destinations, destination_count, count);
  }
}

/// Runs bitwise reductions, which work on the bytes of every dtype. Returns false for another reduction.
bool run_bitwise(DType dtype, ReduceOp reduction, const void* const* sources, size_t ranks,
                 void* const* destinations, size_t destination_count, size_t count) {
  if (dtype == DType::boolean) {
    if (reduction == ReduceOp::SUM || reduction == ReduceOp::MAX) reduction = ReduceOp::BOR;
    if (reduction == ReduceOp::PRODUCT || reduction == ReduceOp::MIN) reduction = ReduceOp::BAND;
  }
  using Bytes = Native<uint8_t>;
  const auto* from = reinterpret_cast<const uint8_t* const*>(sources);
  const auto* to = reinterpret_cast<uint8_t* const*>(destinations);
  const size_t bytes = count * element_size(dtype);
  switch (reduction) {
    case ReduceOp::BAND:
      run<Bytes, And, 0>(from, ranks, to, destination_count, bytes, false);
      return true;
    case ReduceOp::BOR:
      run<Bytes, Or, 0>(from, ranks, to, destination_count, bytes, false);
      return true;
    case ReduceOp::BXOR:
      run<Bytes, Xor, 0>(from, ranks, to, destination_count, bytes, false);
      return true;
    default:
      return false;
  }
}

void ReduceIntegers(DType dtype, ReduceOp reduction, const void* const* sources, size_t ranks,
                    void* const* destinations, size_t destination_count, size_t count) {
  const bool may_be_bitwise =
      dtype == DType::boolean || (reduction >= ReduceOp::BAND && reduction <= ReduceOp::BXOR);
  if (may_be_bitwise &&
      run_bitwise(dtype, reduction, sources, ranks, destinations, destination_count, count)) {
    return;
  }
  switch (dtype) {
    case DType::int8:
      return run_type<Native<int8_t>>(reduction, sources, ranks, destinations, destination_count, count);
    case DType::uint8:
      return run_type<Native<uint8_t>>(reduction, sources, ranks, destinations, destination_count, count);
    case DType::int16:
      return run_type<Native<int16_t>>(reduction, sources, ranks, destinations, destination_count, count);
    case DType::int32:
      return run_type<Native<int32_t>>(reduction, sources, ranks, destinations, destination_count, count);
    case DType::int64:
      return run_type<Native<int64_t>>(reduction, sources, ranks, destinations, destination_count, count);
    // Sums and products that wrap around are the same bits as the signed ones.
    case DType::uint16:
      return run_unsigned<uint16_t, int16_t>(reduction, sources, ranks, destinations, destination_count,
                                             count);
    case DType::uint32:
      return run_unsigned<uint32_t, int32_t>(reduction, sources, ranks, destinations, destination_count,
                                             count);
    case DType::uint64:
      return run_unsigned<uint64_t, int64_t>(reduction, sources, ranks, destinations, destination_count,
                                             count);
    default:
      return;  // is_supported() is false: callers refuse them
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::shm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::shm {

HWY_EXPORT(ReduceIntegers);

void reduce_integers(DType dtype, ReduceOp reduction, const void* const* sources, size_t ranks,
                     void* const* destinations, size_t destination_count, size_t count) {
  HWY_DYNAMIC_DISPATCH(ReduceIntegers)
  (dtype, reduction, sources, ranks, destinations, destination_count, count);
}

}  // namespace lockstep::shm
#endif
