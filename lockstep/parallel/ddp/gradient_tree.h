// The gradients of several logical ranks of one process, added in the order in which shm::reduce adds those of
// as many ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace lockstep {

/// The lower levels of a balanced binary tree, folded while its leaves come, in order: of n leaves at most
/// log2(n) sums are kept. Sums are made in the tensors' dtype, without contraction. One thread at a time.
class GradientTree {
 public:
  /// The next leaf: a gradient for each parameter, of the same shape and dtype in every leaf, undefined for
  /// zeros. Their memory is the tree's from here on.
  void push(std::vector<at::Tensor> gradients);
  /// `last` is parameter `index`'s gradient of the last leaf: makes the sum of all leaves of it and drops the
  /// parameter's others. The number of leaves, with the last one, is a power of two.
  void add_to(size_t index, const at::Tensor& last);
  void clear() { sums_.clear(); }
  bool empty() const { return sums_.empty(); }

 private:
  struct Sum {
    std::vector<at::Tensor> gradients;
    size_t leaves = 1;
  };
  std::vector<Sum> sums_{};  // from the left; each of fewer leaves than the one before
};

}  // namespace lockstep
