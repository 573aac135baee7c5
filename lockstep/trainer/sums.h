// Numbers with names that ranks add up.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace lockstep {

/// The members of `sums`, a struct of doubles, become what `all_reduce` makes of a tensor of them. The tensor has memory of its
/// own, since after a failure an engine may still write it.
template <class Sums, class AllReduce>
void sum_over_ranks(Sums& sums, const AllReduce& all_reduce) {
  static_assert(std::is_standard_layout_v<Sums> && std::is_trivially_copyable_v<Sums> &&
                alignof(Sums) == alignof(double) && sizeof(Sums) % sizeof(double) == 0);
  const at::Tensor tensor = at::empty({static_cast<int64_t>(sizeof(Sums) / sizeof(double))}, at::kDouble);
  std::memcpy(tensor.mutable_data_ptr(), &sums, sizeof sums);
  all_reduce(tensor);
  std::memcpy(&sums, tensor.const_data_ptr(), sizeof sums);
}

}  // namespace lockstep
