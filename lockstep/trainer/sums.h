// Numbers with names that ranks add up.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <cstdint>
#include <type_traits>

namespace lockstep {

/// The members of `sums`, a struct of doubles, as a tensor in the same memory: an all-reduce of it leaves the sums over the
/// ranks under their names. Valid as long as `sums` is.
template <class Sums>
at::Tensor as_tensor(Sums& sums) {
  static_assert(std::is_standard_layout_v<Sums> && std::is_trivially_copyable_v<Sums> &&
                alignof(Sums) == alignof(double) && sizeof(Sums) % sizeof(double) == 0);
  return at::from_blob(&sums, {static_cast<int64_t>(sizeof(Sums) / sizeof(double))}, at::kDouble);
}

}  // namespace lockstep
