#include "lockstep/parallel/data_parallel/scatter_gather.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

std::vector<int64_t> chunk_sizes(int64_t rows, int replicas) {
  if (replicas < 1) throw ValueError(fmt::format("scatter: {} replicas; at least 1 is needed", replicas));
  const int64_t each = std::max<int64_t>((rows + replicas - 1) / replicas, 1);
  std::vector<int64_t> sizes;
  for (int64_t begin = 0; begin < rows; begin += each) sizes.push_back(std::min(each, rows - begin));
  if (sizes.empty()) sizes.push_back(0);
  return sizes;
}

namespace detail {

int64_t batch_rows(const FoundTensors& found, int64_t dim) {
  int64_t rows = -1;
  const std::string* first = nullptr;
  for (size_t t = 0; t < found.tensors.size(); ++t) {
    const at::Tensor& tensor = found.tensors[t];
    if (!tensor.defined() || tensor.dim() == 0) continue;
    const std::string& path = found.paths[t];
    if (dim < 0 || dim >= tensor.dim()) {
      throw ValueError(
          fmt::format("scatter: {} has {} dimensions, so it cannot be divided along dimension {}", path,
                      tensor.dim(), dim));
    }
    if (first != nullptr && tensor.size(dim) != rows) {
      throw ValueError(
          fmt::format("scatter: {} has size {} along dimension {} and {} has {}; the tensors of one batch "
                      "have as many samples",
                      path, tensor.size(dim), dim, *first, rows));
    }
    rows = tensor.size(dim);
    first = &path;
  }
  return rows;
}

std::vector<std::vector<at::Tensor>> split_tensors(const std::vector<at::Tensor>& tensors,
                                                   const std::vector<int64_t>& sizes, int64_t dim) {
  std::vector<std::vector<at::Tensor>> parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    std::vector<at::Tensor>& part = parts.emplace_back();
    for (const at::Tensor& tensor : tensors) {
      part.push_back(tensor.defined() && tensor.dim() > 0 ? tensor.narrow(dim, begin, size) : tensor);
    }
    begin += size;
  }
  return parts;
}

void check_alike(const std::vector<FoundTensors>& outputs) {
  if (outputs.empty()) throw ValueError("gather: no outputs to gather");
  const FoundTensors& first = outputs.front();
  for (size_t replica = 1; replica < outputs.size(); ++replica) {
    const FoundTensors& other = outputs[replica];
    const std::string who = "gather: replica " + std::to_string(replica);
    if (other.paths != first.paths) {
      const auto [mine, theirs] =
          std::mismatch(first.paths.begin(), first.paths.end(), other.paths.begin(), other.paths.end());
      const auto in_words = [](const auto& at, const auto& end) { return at == end ? "nothing more" : *at; };
      throw ValueError(
          fmt::format("{} returned {} where replica 0 returned {}; all must return the same tensors", who,
                      in_words(theirs, other.paths.end()), in_words(mine, first.paths.end())));
    }
    for (size_t t = 0; t < first.tensors.size(); ++t) {
      const at::Tensor &a = first.tensors[t], &b = other.tensors[t];
      if (a.defined() != b.defined()) {
        throw ValueError(
            fmt::format("{} and replica 0 differ in whether {} is defined", who, first.paths[t]));
      }
      if (a.defined() && (a.scalar_type() != b.scalar_type() || a.dim() != b.dim())) {
        throw ValueError(fmt::format("{} returned a {} of {} dimensions as {}, replica 0 a {} of {}", who,
                                     c10::toString(b.scalar_type()), b.dim(), first.paths[t],
                                     c10::toString(a.scalar_type()), a.dim()));
      }
    }
  }
}

at::Tensor join_tensors(const std::vector<at::Tensor>& parts, int64_t dim) {
  if (!parts.front().defined()) return {};
  return parts.front().dim() == 0 ? at::stack(parts) : at::cat(parts, dim);
}

}  // namespace detail
}  // namespace lockstep
