#include "lockstep/parallel/ddp/sparse_gradients.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>

namespace lockstep {
namespace {

/// The sum of everybody's sparse tensors, in the same tree over ranks as dense ones.
at::Tensor sum_parts(const std::vector<at::Tensor>& parts, size_t begin, size_t end) {
  if (end - begin == 1) return parts[begin].coalesce();
  size_t half = 1;
  while (half * 2 < end - begin) half *= 2;
  return at::add(sum_parts(parts, begin, begin + half), sum_parts(parts, begin + half, end)).coalesce();
}

/// No rows at all, in the form of an embedding's gradient.
at::Tensor no_rows(const at::Tensor& parameter) {
  std::vector<int64_t> values = parameter.sizes().vec();
  values[0] = 0;
  return at::sparse_coo_tensor(at::empty({1, 0}, parameter.options().dtype(at::kLong)),
                               at::empty(values, parameter.options()), parameter.sizes(),
                               parameter.options().layout(at::kSparse),
                               /*is_coalesced=*/true);
}

at::Tensor sum_sparse(const ProcessGroup& group, const at::Tensor& gradient) {
  const at::Tensor own = gradient.coalesce();
  const auto indices = group.all_gather_uneven(own.indices().t().contiguous());
  const auto values = group.all_gather_uneven(own.values());
  std::vector<at::Tensor> parts;
  for (size_t r = 0; r < indices.size(); ++r) {
    parts.push_back(at::sparse_coo_tensor(indices[r].t(), values[r], gradient.sizes(), gradient.options(),
                                          /*is_coalesced=*/true));
  }
  return sum_parts(parts, 0, parts.size());
}

}  // namespace

void average_sparse_gradients(const ProcessGroup& group, const GradientBuckets& buckets, const Pass& pass) {
  for (size_t p = 0; p < buckets.parameters().size(); ++p) {
    const GradientBuckets::Parameter& parameter = buckets.parameters()[p];
    if (!parameter.is_trainable || !parameter.is_sparse) continue;
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    const bool is_there = pass.role == Role::active && gradient.defined() && gradient.is_sparse();
    const at::Tensor sum = sum_sparse(group, is_there ? gradient : no_rows(parameter.tensor));
    // Rows that no rank used: whatever there was stays as it was.
    if (sum._nnz() > 0 && (pass.role == Role::active || pass.role == Role::joined)) {
      gradient = sum.div(pass.divisor > 0 ? pass.divisor : group.size());
    } else if (pass.role == Role::joined) {
      gradient.reset();
    }
  }
}

}  // namespace lockstep
