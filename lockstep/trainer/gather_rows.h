// What the ranks found for their samples, in one tensor on rank 0.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Rows of some samples, and the samples' numbers.
struct NumberedRows {
  std::vector<int64_t> numbers;
  at::Tensor rows;  ///< [samples, ...]
};

/// float32 or int64 [size, ...] on rank 0, in the order of the numbers, undefined on the others. Rows of different shapes are
/// filled up with -100 at their ends. Travels part by part, so that rank 0 needs the memory of the result and of
/// one part of each rank. Called by all ranks; blocks. Throws ValueError where numbers of dimensions differ.
at::Tensor gather_rows(const std::vector<NumberedRows>& parts, int64_t size, const ProcessGroup& group);

}  // namespace lockstep
