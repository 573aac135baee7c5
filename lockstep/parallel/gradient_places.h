// Elements of a weight that have a gradient: a write that changes nothing else is seen by them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "lockstep/parallel/tensor_probe.h"

namespace lockstep::detail {

/// Belongs to one parameter. An optimizer without a state writes nothing but the elements that have a gradient, such as some rows of an
/// embedding. One thread at a time.
class GradientPlaces {
 public:
  /// Nothing is noted.
  void forget() { is_noted_ = false; }
  /// A backward has ended: notes some elements of `parameter` that have a gradient, dense or of an embedding's rows, and what
  /// they hold now, unless those of a backward before have been written. Notes nothing on a GPU.
  void note(const at::Tensor& parameter);
  /// Has `parameter` been written at one of these places since?
  bool are_written(const at::Tensor& parameter) const;

 private:
  void note_elements(const at::Tensor& parameter, const at::Tensor& gradient);
  void note_rows(const at::Tensor& parameter, const at::Tensor& gradient);
  void add(const Elements& weights, size_t place);

  bool is_noted_ = false;
  size_t count_ = 0;
  std::array<size_t, kProbedElements> places_{};
  std::array<uint64_t, kProbedElements> bits_{};
};

}  // namespace lockstep::detail
