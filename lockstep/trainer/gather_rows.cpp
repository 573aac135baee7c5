#include "lockstep/trainer/gather_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr double kFill = -100;
constexpr size_t kMostDimensions = 8;

// What the rows of all ranks have in common: dimensions, greatest extents, a type that holds them.
struct Common {
  std::vector<int64_t> shape{};
  at::ScalarType dtype = at::kLong;
};

Common agree(const std::vector<NumberedRows>& parts, const ProcessGroup& group) {
  // Least and greatest number of dimensions (the least as its opposite), is any floating, extents.
  std::vector<int64_t> values(3 + kMostDimensions, 0);
  values[0] = -static_cast<int64_t>(kMostDimensions) - 1;
  for (const auto& part : parts) {
    const int64_t dims = part.rows.dim() - 1;
    if (dims < 0 || dims > static_cast<int64_t>(kMostDimensions)) {
      throw ValueError(
          "outputs and labels of a model must have samples as their first dimension, and at most 9");
    }
    values[0] = std::max(values[0], -dims);
    values[1] = std::max(values[1], dims);
    values[2] = std::max<int64_t>(values[2], part.rows.is_floating_point() ? 1 : 0);
    for (int64_t d = 0; d < dims; ++d) {
      auto& extent = values[3 + static_cast<size_t>(d)];
      extent = std::max(extent, part.rows.size(d + 1));
    }
  }
  const at::Tensor all = at::tensor(values, at::kLong);
  group.all_reduce(all, {.op = ReduceOp::MAX});
  const auto* agreed = all.const_data_ptr<int64_t>();
  if (-agreed[0] != agreed[1]) {
    throw ValueError(
        "the model's outputs have different numbers of dimensions in different batches; they cannot be "
        "gathered");
  }
  return {.shape = {agreed + 3, agreed + 3 + agreed[1]}, .dtype = agreed[2] != 0 ? at::kFloat : at::kLong};
}

at::Tensor filled(const at::Tensor& rows, const Common& common) {
  const at::Tensor plain = rows.detach().to(at::kCPU, common.dtype);
  std::vector<int64_t> shape = {rows.size(0)};
  shape.insert(shape.end(), common.shape.begin(), common.shape.end());
  if (plain.sizes() == shape) return plain.contiguous();
  at::Tensor result = at::full(shape, kFill, at::TensorOptions(common.dtype));
  at::Tensor corner = result;
  for (int64_t d = 1; d < plain.dim(); ++d) corner = corner.narrow(d, 0, plain.size(d));
  corner.copy_(plain);
  return result;
}

}  // namespace

at::Tensor gather_rows(const std::vector<NumberedRows>& parts, int64_t size, const ProcessGroup& group) {
  const Common common = agree(parts, group);
  if (group.rank() != 0) {
    for (const auto& part : parts) {
      group.send(at::scalar_tensor(static_cast<int64_t>(part.numbers.size()), at::kLong), 0);
      group.send(at::tensor(part.numbers, at::kLong), 0);
      group.send(filled(part.rows, common), 0);
    }
    group.send(at::scalar_tensor(int64_t{0}, at::kLong), 0);
    return {};
  }
  std::vector<int64_t> shape = {size};
  shape.insert(shape.end(), common.shape.begin(), common.shape.end());
  at::Tensor all = at::empty(shape, at::TensorOptions(common.dtype));
  for (const auto& part : parts) {
    all.index_copy_(0, at::tensor(part.numbers, at::kLong), filled(part.rows, common));
  }
  for (int rank = 1; rank < group.size(); ++rank) {
    const at::Tensor count = at::zeros({}, at::kLong);
    for (group.recv(count, rank); count.item<int64_t>() > 0; group.recv(count, rank)) {
      shape[0] = count.item<int64_t>();
      const at::Tensor numbers = at::empty({shape[0]}, at::kLong);
      const at::Tensor rows = at::empty(shape, at::TensorOptions(common.dtype));
      group.recv(numbers, rank);
      group.recv(rows, rank);
      all.index_copy_(0, numbers, rows);
    }
  }
  return all;
}

}  // namespace lockstep
