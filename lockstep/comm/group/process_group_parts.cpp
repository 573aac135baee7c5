// ProcessGroup: collectives on parts of a tensor, and memory that all ranks have in common.
#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/process_group_impl.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

using WorkPtr = ProcessGroup::WorkPtr;

namespace {

void check_parts(const char* what, const at::Tensor& tensor, const std::vector<TensorPart>& parts) {
  if (!tensor.is_contiguous()) throw ValueError(std::string(what) + " takes a contiguous tensor");
  for (const TensorPart& part : parts) {
    if (part.first >= 0 && part.count >= 0 && part.first + part.count <= tensor.numel()) continue;
    throw ValueError(std::string(what) + ": the part of " + std::to_string(part.count) +
                     " elements that begins at " + std::to_string(part.first) + " is outside the tensor of " +
                     std::to_string(tensor.numel()));
  }
}

/// An element that is named twice would be written twice, or read after it was written.
void check_disjoint(const char* what, std::vector<TensorPart> parts) {
  const auto begins_before = [](const TensorPart& a, const TensorPart& b) { return a.first < b.first; };
  std::erase_if(parts, [](const TensorPart& part) { return part.count == 0; });
  if (!std::is_sorted(parts.begin(), parts.end(), begins_before)) {
    std::sort(parts.begin(), parts.end(), begins_before);
  }
  for (size_t i = 1; i < parts.size(); ++i) {
    const TensorPart &before = parts[i - 1], &part = parts[i];
    if (before.first + before.count <= part.first) continue;
    throw ValueError(std::string(what) + ": the part of " + std::to_string(before.count) +
                     " elements that begins at " + std::to_string(before.first) +
                     " overlaps the one that begins at " + std::to_string(part.first) +
                     "; each element may be in one part only");
  }
}

void check_sizes(const char* what, at::IntArrayRef sizes) {
  for (const int64_t size : sizes) {
    if (size < 0)
      throw ValueError(std::string(what) + ": a size must be 0 or more, not " + std::to_string(size));
  }
}

}  // namespace

void needs_shared_memory(const char* what, const std::string& backend) {
  throw ValueError(std::string(what) + " needs ranks of one machine on the \"lockstep\" backend, not \"" +
                   backend + "\"");
}

WorkPtr ProcessGroup::reduce_parts_async(const at::Tensor& tensor, const std::vector<TensorPart>& parts,
                                         ReduceScatterOptions options) const {
  check_parts("reduce_parts", tensor, parts);
  check_disjoint("reduce_parts", parts);
  return impl().start({.kind = Collective::Kind::reduce_parts,
                       .inputs = {&tensor, 1},
                       .outputs = {&tensor, 1},
                       .op = options.op,
                       .parts = {&parts, 1},
                       .timeout = timeout_or(options.timeout)});
}

WorkPtr ProcessGroup::all_gather_parts_async(const at::Tensor& tensor,
                                             const std::vector<std::vector<TensorPart>>& parts,
                                             CollectiveOptions options) const {
  if (parts.size() != static_cast<size_t>(size())) {
    throw ValueError("all_gather_parts needs the parts of " + std::to_string(size()) + " ranks, not of " +
                     std::to_string(parts.size()));
  }
  std::vector<TensorPart> all;
  for (const auto& of_rank : parts) {
    check_parts("all_gather_parts", tensor, of_rank);
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  }
  check_disjoint("all_gather_parts", std::move(all));
  return impl().start({.kind = Collective::Kind::all_gather_parts,
                       .inputs = {&tensor, 1},
                       .outputs = {&tensor, 1},
                       .parts = parts,
                       .timeout = timeout_or(options.timeout)});
}

at::Tensor ProcessGroup::empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) const {
  check_sizes("empty_shared", sizes);
  return impl().empty_shared(sizes, dtype);
}

at::Tensor ProcessGroup::empty_common(at::IntArrayRef sizes, at::ScalarType dtype) const {
  check_sizes("empty_common", sizes);
  return impl().empty_common(sizes, dtype);
}

}  // namespace lockstep
