#include "lockstep/comm/backends/sparse_all_reduce.h"

#include <ATen/ops/add.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>

#include <bit>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/comm/shm_tensor.h"

namespace lockstep::backends {
namespace {

/// In the order of all other sums.
at::Tensor tree_sum(const at::Tensor* parts, size_t count) {
  if (count == 1) return *parts;
  const size_t left = std::bit_ceil(count) / 2;
  return at::add(tree_sum(parts, left), tree_sum(parts + left, count - left)).coalesce();
}

void check_shapes(const ProcessGroup& group, const at::Tensor& tensor, CollectiveOptions options) {
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape.push_back(tensor.sparse_dim());
  const auto shapes = group.all_gather(at::tensor(shape, at::kLong), options);
  for (size_t r = 0; r < shapes.size(); ++r) {
    if (shapes[r].equal(shapes.front())) continue;
    std::ostringstream text;
    const auto described = [](const at::Tensor& t) {
      const at::IntArrayRef values(t.const_data_ptr<int64_t>(), static_cast<size_t>(t.numel()));
      std::ostringstream shape_text;
      shape_text << values.slice(0, values.size() - 1) << " with " << values.back() << " sparse dimensions";
      return shape_text.str();
    };
    text << "all_reduce of sparse tensors: rank " << r << " has shape " << described(shapes[r])
         << ", rank 0 has " << described(shapes.front());
    throw ValueError(text.str());
  }
}

}  // namespace

at::Tensor sparse_all_reduce(const ProcessGroup& group, const at::Tensor& tensor, ReduceOp op,
                             std::optional<std::chrono::milliseconds> timeout) {
  if (op != ReduceOp::SUM && op != ReduceOp::AVG) {
    throw ValueError("all_reduce of sparse tensors takes SUM and AVG only");
  }
  const bool is_of_integers = c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
  if (tensor.scalar_type() == at::kBool) checked(op, shm::DType::boolean);
  const CollectiveOptions options{timeout};
  check_shapes(group, tensor, options);
  const at::Tensor mine = tensor.coalesce();
  const auto indices = group.all_gather_uneven(mine.indices().t().contiguous(), options);
  const auto values = group.all_gather_uneven(mine.values(), options);
  const bool is_half = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
  const bool averages_integers = op == ReduceOp::AVG && is_of_integers;
  // What sums are made in.
  const at::ScalarType wide = is_half ? at::kFloat : averages_integers ? at::kLong : tensor.scalar_type();
  std::vector<at::Tensor> parts;
  for (size_t r = 0; r < values.size(); ++r) {
    const at::Tensor entries = values[r].to(wide);
    // Every rank's are coalesced.
    const auto as_sparse = entries.options().layout(at::kSparse);
    parts.push_back(at::sparse_coo_tensor(indices[r].t(), entries, tensor.sizes(), as_sparse, true));
  }
  at::Tensor sum = tree_sum(parts.data(), parts.size());
  if (op == ReduceOp::AVG) {
    averages_integers ? sum.values().div_(group.size(), "trunc") : sum.div_(group.size());
  }
  return sum.to(tensor.scalar_type());
}

}  // namespace lockstep::backends
