// Floating-point numbers; see reduce_kernels-inl.h. -ffp-contract=off is set for this file: a sum must round
// the same way on every machine.
#include "lockstep/shm/reduce/reduce_targets.h"
//
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lockstep/shm/reduce/reduce_floats.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>
//
#include "lockstep/shm/reduce/reduce_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::shm {
namespace HWY_NAMESPACE {

void ReduceFloats(DType dtype, ReduceOp reduction, const void* const* sources, size_t ranks,
                  void* const* destinations, size_t destination_count, size_t count) {
  switch (dtype) {
    case DType::float32:
      return run_type<Native<float>>(reduction, sources, ranks, destinations, destination_count, count);
    case DType::float64:
      return run_type<Native<double>>(reduction, sources, ranks, destinations, destination_count, count);
    case DType::float16:
      return run_type<Half>(reduction, sources, ranks, destinations, destination_count, count);
    case DType::bfloat16:
      return run_type<Brain>(reduction, sources, ranks, destinations, destination_count, count);
    default:
      return;  // reduce_integers()
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::shm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::shm {

HWY_EXPORT(ReduceFloats);

void reduce_floats(DType dtype, ReduceOp reduction, const void* const* sources, size_t ranks,
                   void* const* destinations, size_t destination_count, size_t count) {
  HWY_DYNAMIC_DISPATCH(ReduceFloats)
  (dtype, reduction, sources, ranks, destinations, destination_count, count);
}

}  // namespace lockstep::shm
#endif
