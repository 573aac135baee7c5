// Sums that are not finished yet: in which dtype they travel, and how they become the result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/shm/reduce/reduce.h"

namespace lockstep::uplink {

/// In which form sums travel from machine to machine.
enum class WireForm : uint8_t {
  exact,     ///< with all their bits
  bfloat16,  ///< float32 sums are rounded to it; on all machines alike, so that all have the same result
};

/// Cuts shm::reduce() in two: partial sums of some ranks first, later their sum, with the same bits as in one piece.
/// Sums and products of float16 and bfloat16 travel in float32, averages of integers in 64 bits. Immutable.
class Accumulation {
 public:
  /// `ranks`: of the whole group. `form`: another one than exact only where can_narrow().
  Accumulation(shm::DType dtype, ReduceOp op, size_t ranks, WireForm form = WireForm::exact);

  /// Are there float32 sums to be rounded?
  static bool can_narrow(shm::DType dtype, ReduceOp op);

  shm::DType dtype() const { return dtype_; }
  shm::DType partial_dtype() const { return partial_dtype_; }
  size_t element_bytes() const { return shm::element_size(dtype_); }
  size_t partial_bytes() const { return shm::element_size(partial_dtype_); }
  /// By which partial sums are combined: AVG adds.
  ReduceOp partial_op() const { return partial_op_; }
  bool is_widened() const { return partial_dtype_ != dtype_; }
  WireForm form() const { return form_; }
  bool is_narrowed() const { return form_ != WireForm::exact; }
  /// Do results travel in that form, too? Those in 16 bits have no more than it has.
  bool narrows_results() const { return is_narrowed() && !is_widened(); }
  /// A partial sum has so many bytes on its way between machines, and so has a result.
  size_t packed_bytes() const { return is_narrowed() ? 2 : partial_bytes(); }
  size_t packed_result_bytes() const { return narrows_results() ? 2 : element_bytes(); }

  /// Copies `count` elements of a rank into partial sums.
  void widen(const void* from, void* to, size_t count) const;
  /// Partial sums, or results that are narrowed, as they travel, and back: rounded then.
  void pack(const void* from, void* to, size_t count) const;
  void unpack(const void* from, void* to, size_t count) const;
  /// Combines partial sums: to = a op b. `to` may be one of them.
  void add(const void* a, const void* b, void* to, size_t count) const;
  /// Makes the results out of the sums of all ranks, which may be lost: it divides for AVG, and rounds once. `results`: may be
  /// `sums` where no element is widened.
  void finish(void* sums, void* results, size_t count) const;

 private:
  shm::DType dtype_, partial_dtype_;
  ReduceOp op_, partial_op_;
  size_t ranks_;
  WireForm form_;
};

}  // namespace lockstep::uplink
