#include "lockstep/comm/process_group/parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {

void check_parts(const char* what, const at::Tensor& tensor, const std::vector<TensorPart>& parts) {
  if (!tensor.is_contiguous()) throw ValueError(fmt::format("{} takes a contiguous tensor", what));
  for (const TensorPart& part : parts) {
    if (part.first >= 0 && part.count >= 0 && part.first + part.count <= tensor.numel()) continue;
    throw ValueError(fmt::format("{}: the part of {} elements that begins at {} is outside the tensor of {}",
                                 what, part.count, part.first, tensor.numel()));
  }
}

void check_disjoint(const char* what, std::vector<TensorPart> parts) {
  const auto begins_before = [](const TensorPart& a, const TensorPart& b) { return a.first < b.first; };
  std::erase_if(parts, [](const TensorPart& part) { return part.count == 0; });
  if (!std::is_sorted(parts.begin(), parts.end(), begins_before)) {
    std::sort(parts.begin(), parts.end(), begins_before);
  }
  for (size_t i = 1; i < parts.size(); ++i) {
    const TensorPart &before = parts[i - 1], &part = parts[i];
    if (before.first + before.count <= part.first) continue;
    throw ValueError(
        fmt::format("{}: the part of {} elements that begins at {} overlaps the one that begins at {}; each "
                    "element may be in one part only",
                    what, before.count, before.first, part.first));
  }
}

}  // namespace lockstep
