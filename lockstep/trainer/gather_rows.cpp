#include "lockstep/trainer/gather_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr double kFill = -100;
constexpr size_t kMostDimensions = 9;

// What the parts of all ranks have in common: their number and greatest length, dimensions, greatest extents, a
// type that holds them.
struct Common {
  int64_t parts = 0;
  std::vector<int64_t> shape{};  // of a part
  at::ScalarType dtype = at::kLong;
};

Common agree(const std::vector<NumberedRows>& parts, const ProcessGroup& group) {
  // Is any floating; least (as its opposite) and greatest number of dimensions; parts; rows of a part; extents.
  constexpr size_t kExtents = 4;
  std::vector<int64_t> values(kExtents + kMostDimensions, 0);
  values[1] = -static_cast<int64_t>(kMostDimensions) - 1;
  values[3] = static_cast<int64_t>(parts.size());
  for (const auto& part : parts) {
    const int64_t dims = part.rows.dim();
    if (dims < 1 || dims > static_cast<int64_t>(kMostDimensions)) {
      throw ValueError(
          fmt::format("a model's outputs and labels must have samples as their first dimension, and at "
                      "most {}; these have the shape {}",
                      kMostDimensions, c10::str(part.rows.sizes())));
    }
    values[0] = std::max<int64_t>(values[0], part.rows.is_floating_point() ? 1 : 0);
    values[1] = std::max(values[1], -dims);
    values[2] = std::max(values[2], dims);
    for (int64_t d = 0; d < dims; ++d) {
      auto& extent = values[kExtents + static_cast<size_t>(d)];
      extent = std::max(extent, part.rows.size(d));
    }
  }
  const at::Tensor all = at::tensor(values, at::kLong);
  group.all_reduce(all, {.op = ReduceOp::MAX});
  const auto* agreed = all.const_data_ptr<int64_t>();
  if (-agreed[1] != agreed[2]) {
    throw ValueError(fmt::format(
        "the model's outputs or labels have {} dimensions in one batch and {} in another; they cannot be "
        "gathered",
        -agreed[1], agreed[2]));
  }
  return {.parts = agreed[3],
          .shape = {agreed + kExtents, agreed + kExtents + agreed[2]},
          .dtype = agreed[0] != 0 ? at::kFloat : at::kLong};
}

// `rows` in a tensor of that shape; what they do not fill is kFill.
at::Tensor filled(const at::Tensor& rows, const std::vector<int64_t>& shape, at::ScalarType dtype) {
  at::Tensor result = at::full(shape, kFill, at::TensorOptions(dtype));
  if (!rows.defined()) return result;
  at::Tensor corner = result;
  for (int64_t d = 0; d < rows.dim(); ++d) corner = corner.narrow(d, 0, rows.size(d));
  corner.copy_(rows.detach());
  return result;
}

}  // namespace

at::Tensor gather_rows(const std::vector<NumberedRows>& parts, int64_t size, const ProcessGroup& group) {
  const Common common = agree(parts, group);
  std::vector<int64_t> shape = common.shape;
  shape[0] = size;
  at::Tensor all;
  if (group.rank() == 0) all = at::empty(shape, at::TensorOptions(common.dtype));
  for (size_t p = 0; p < static_cast<size_t>(common.parts); ++p) {
    const bool has = p < parts.size();
    const auto gathered =
        group.gather(filled(has ? parts[p].rows : at::Tensor(), common.shape, common.dtype));
    const auto numbers = group.gather(
        filled(has ? at::tensor(parts[p].numbers, at::kLong) : at::Tensor(), {common.shape[0]}, at::kLong));
    for (size_t r = 0; r < gathered.size(); ++r) {
      const int64_t rows = (numbers[r] >= 0).sum().item<int64_t>();
      all.index_copy_(0, numbers[r].slice(0, 0, rows), gathered[r].slice(0, 0, rows));
    }
  }
  return all;
}

}  // namespace lockstep
