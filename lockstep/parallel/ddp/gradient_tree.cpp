#include "lockstep/parallel/ddp/gradient_tree.h"

#include <ATen/ops/add.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace lockstep {
namespace {

/// left + right, in the memory of one of them. Zeros are added, too: -0 + 0 is 0.
at::Tensor add_in_tree(at::Tensor left, at::Tensor right) {
  if (!left.defined() && !right.defined()) return {};
  if (!right.defined()) return left.add_(0);
  if (!left.defined()) return right.add_(0);
  return left.add_(right);
}

}  // namespace

void GradientTree::push(std::vector<at::Tensor> gradients) {
  const at::NoGradGuard no_grad;
  sums_.push_back({std::move(gradients)});
  while (sums_.size() > 1 && sums_[sums_.size() - 2].leaves == sums_.back().leaves) {
    Sum right = std::move(sums_.back());
    sums_.pop_back();
    Sum& left = sums_.back();
    left.leaves *= 2;
    for (size_t p = 0; p < left.gradients.size(); ++p) {
      left.gradients[p] = add_in_tree(std::move(left.gradients[p]), std::move(right.gradients[p]));
    }
  }
}

void GradientTree::add_to(size_t index, const at::Tensor& last) {
  const at::NoGradGuard no_grad;
  for (size_t s = sums_.size(); s-- > 0;) {
    const at::Tensor left = std::exchange(sums_[s].gradients[index], {});
    if (left.defined()) {
      last.add_(left);  // the same bits as left + last
    } else {
      last.add_(0);
    }
  }
}

}  // namespace lockstep
