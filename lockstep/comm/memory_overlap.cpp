#include "lockstep/comm/memory_overlap.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;

/// The bytes from a tensor's first element to the end of its last one.
struct Extent {
  uintptr_t begin = 0, end = 0;
  bool meets(const Extent& other) const { return begin < other.end && other.begin < end; }
};

/// Empty if the tensor has no elements, or no memory of its own to speak of.
Extent extent_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.numel() == 0) return {};
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  return {begin, begin + (static_cast<uintptr_t>(last) + 1) * tensor.element_size()};
}

/// Marks places in memory, and notices those that are marked twice.
class Places {
 public:
  Places(Extent range, size_t unit)
      : begin_(range.begin), unit_(unit), taken_((range.end - range.begin + unit - 1) / unit) {}

  /// Takes the place of every element; false if one was taken before.
  bool take(const at::Tensor& tensor) {
    const uintptr_t first = reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) - begin_;
    const auto dimensions = static_cast<size_t>(tensor.dim());
    std::vector<int64_t> index(dimensions);
    for (int64_t left = tensor.numel(), offset = 0; left > 0; --left) {
      const uintptr_t byte = first + static_cast<uintptr_t>(offset) * tensor.element_size();
      for (size_t i = 0; i < tensor.element_size() / unit_; ++i) {
        auto place = taken_[byte / unit_ + i];
        if (place) return false;
        place = true;
      }
      for (size_t d = dimensions; d-- > 0;) {
        const auto dimension = static_cast<int64_t>(d);
        offset += tensor.stride(dimension);
        if (++index[d] < tensor.size(dimension)) break;
        offset -= tensor.size(dimension) * tensor.stride(dimension);
        index[d] = 0;
      }
    }
    return true;
  }

 private:
  uintptr_t begin_;
  size_t unit_;
  std::vector<bool> taken_;
};

struct Output {
  Extent extent;
  size_t number;
};

/// The number of an output that shares an element with another one, among those whose ranges meet; -1 if none
/// does.
int find_double(const Tensors& outputs, const std::vector<Output>& close) {
  Extent whole = close.front().extent;
  size_t unit = 0;
  for (const Output& output : close) {
    whole.end = std::max(whole.end, output.extent.end);
    unit = std::gcd(unit, outputs[output.number].element_size());
    unit = std::gcd(unit, static_cast<size_t>(output.extent.begin - whole.begin));
  }
  Places places(whole, unit);
  for (const Output& output : close) {
    if (!places.take(outputs[output.number])) return static_cast<int>(output.number);
  }
  return -1;
}

[[noreturn]] void refuse_output(const char* what, const std::string& which, const at::Tensor& output) {
  throw ValueError(std::string(what) + ": " + which + " has " + describe_layout(output) +
                   ", so that some of its elements are one place in memory (as after expand()), and cannot "
                   "be written; pass its clone()");
}

bool is_same_place(const at::Tensor& a, const at::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && a.nbytes() == b.nbytes() && a.is_contiguous() &&
         b.is_contiguous();
}

}  // namespace

bool overlaps_itself(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.numel() < 2 || tensor.is_contiguous()) {
    return false;
  }
  std::vector<std::pair<int64_t, int64_t>> steps;  // stride, size
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) steps.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::sort(steps.begin(), steps.end());
  bool is_nested = true;  // each stride goes beyond all that the smaller ones reach
  int64_t reach = 0;
  for (const auto& [stride, size] : steps) {
    if (stride == 0) return true;
    is_nested = is_nested && stride > reach;
    reach += (size - 1) * stride;
  }
  return !is_nested && !Places(extent_of(tensor), tensor.element_size()).take(tensor);
}

bool may_overlap(const at::Tensor& a, const at::Tensor& b) { return extent_of(a).meets(extent_of(b)); }

std::string describe_layout(const at::Tensor& tensor) {
  std::ostringstream text;
  text << "shape " << tensor.sizes() << " and strides " << tensor.strides();
  return text.str();
}

void check_apart(const char* what, const Tensors& outputs) {
  const bool is_only_one = outputs.size() == 1;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!overlaps_itself(outputs[i])) continue;
    refuse_output(what, is_only_one ? "the tensor" : "output " + std::to_string(i), outputs[i]);
  }
  if (outputs.size() < 2) return;
  std::vector<Output> sorted;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Extent extent = extent_of(outputs[i]);
    if (extent.begin < extent.end) sorted.push_back({extent, i});
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Output& a, const Output& b) { return a.extent.begin < b.extent.begin; });
  for (size_t first = 0; first < sorted.size();) {
    std::vector<Output> close{sorted[first]};
    uintptr_t end = sorted[first].extent.end;
    for (++first; first < sorted.size() && sorted[first].extent.begin < end; ++first) {
      close.push_back(sorted[first]);
      end = std::max(end, sorted[first].extent.end);
    }
    const int found = close.size() < 2 ? -1 : find_double(outputs, close);
    if (found < 0) continue;
    throw ValueError(std::string(what) + ": the outputs overlap each other: output " + std::to_string(found) +
                     ", of " + describe_layout(outputs[static_cast<size_t>(found)]) +
                     ", shares memory with another one; each needs memory of its own");
  }
}

at::Tensor apart_from(const at::Tensor& input, const Tensors& outputs, int own) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!may_overlap(input, outputs[i])) continue;
    if (static_cast<int>(i) == own && is_same_place(input, outputs[i])) continue;
    return input.clone();
  }
  return input;
}

Tensors apart_from_others(const Tensors& inputs, const std::vector<Tensors>& outputs) {
  std::vector<std::pair<Extent, size_t>> written;  // with the operation's number
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const at::Tensor& output : outputs[i]) written.emplace_back(extent_of(output), i);
  }
  Tensors apart;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Extent read = extent_of(inputs[i]);
    const bool is_overwritten = std::any_of(written.begin(), written.end(), [&](const auto& output) {
      return output.second != i && output.first.meets(read);
    });
    apart.push_back(is_overwritten ? inputs[i].clone() : inputs[i]);
  }
  return apart;
}

}  // namespace lockstep
