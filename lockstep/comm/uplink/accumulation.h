// Sums that are not finished yet: in which dtype they travel, and how they become the result.
#pragma once

#include <cstddef>

#include "lockstep/shm/reduce/reduce.h"

namespace lockstep::uplink {

/// Cuts shm::reduce() in two: partial sums of some ranks first, later their sum, with the same bits as in one piece.
/// Sums and products of float16 and bfloat16 travel in float32, averages of integers in 64 bits. Immutable.
class Accumulation {
 public:
  /// `ranks`: of the whole group.
  Accumulation(shm::DType dtype, ReduceOp op, size_t ranks);

  shm::DType dtype() const { return dtype_; }
  shm::DType partial_dtype() const { return partial_dtype_; }
  size_t element_bytes() const { return shm::element_size(dtype_); }
  size_t partial_bytes() const { return shm::element_size(partial_dtype_); }
  /// By which partial sums are combined: AVG adds.
  ReduceOp partial_op() const { return partial_op_; }
  bool is_widened() const { return partial_dtype_ != dtype_; }

  /// Copies `count` elements of a rank into partial sums.
  void widen(const void* from, void* to, size_t count) const;
  /// Combines partial sums: to = a op b. `to` may be one of them.
  void add(const void* a, const void* b, void* to, size_t count) const;
  /// Makes the results out of the sums of all ranks, which may be lost: it divides for AVG, and rounds once. `results`: may be
  /// `sums` where no element is widened.
  void finish(void* sums, void* results, size_t count) const;

 private:
  shm::DType dtype_, partial_dtype_;
  ReduceOp op_, partial_op_;
  size_t ranks_;
};

}  // namespace lockstep::uplink
