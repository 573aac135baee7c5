#include "lockstep/comm/memory_overlap.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using base::Extent;
using Tensors = std::vector<at::Tensor>;

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

/// The dimensions of a tensor that has more than one element in them, and the size of an element, in bytes.
struct Steps {
  struct Dimension {
    int64_t stride, size;
  };
  std::vector<Dimension> dimensions;
  int64_t element = 0;

  /// From the first byte to the end of the last one.
  int64_t reach() const {
    int64_t bytes = element;
    for (const Dimension& dimension : dimensions) bytes += (dimension.size - 1) * dimension.stride;
    return bytes;
  }
  /// What stays where it is when places are taken modulo `period`.
  Steps without_multiples_of(int64_t period) const {
    Steps rest{{}, element};
    for (const Dimension& dimension : dimensions) {
      if (dimension.stride % period != 0) rest.dimensions.push_back(dimension);
    }
    return rest;
  }
};

Steps compute_steps(const at::Tensor& tensor) {
  Steps steps{{}, static_cast<int64_t>(tensor.element_size())};
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) steps.dimensions.push_back({tensor.stride(d) * steps.element, tensor.size(d)});
  }
  return steps;
}

/// Do they share no byte if b begins `distance` bytes after a? False where the strides do not tell.
bool are_disjoint(const Steps& a, const Steps& b, int64_t distance) {
  if (distance >= a.reach() || -distance >= b.reach()) return true;
  std::vector<int64_t> periods;
  for (const Steps* const steps : {&a, &b}) {
    for (const auto& dimension : steps->dimensions) {
      if (dimension.stride > 0) periods.push_back(dimension.stride);
    }
  }
  std::sort(periods.begin(), periods.end(), std::greater<>());
  for (const int64_t period : periods) {
    // Two bytes at one place are at one place modulo the period too, where what is smaller than it lies in one or two
    // pieces.
    const Steps rest_a = a.without_multiples_of(period), rest_b = b.without_multiples_of(period);
    if (rest_a.reach() > period || rest_b.reach() > period) continue;
    const int64_t shift = (distance % period + period) % period;
    return are_disjoint(rest_a, rest_b, shift) && are_disjoint(rest_a, rest_b, shift - period);
  }
  return false;
}

/// Do the strides show that no two of `close`, sorted by where they begin, share an element?
bool all_lie_apart(const Tensors& outputs, const std::vector<Output>& close) {
  // A pair costs as much as some 64 elements that are marked.
  size_t marks = 0;
  for (const Output& output : close) marks += static_cast<size_t>(outputs[output.number].numel());
  if (close.size() * close.size() > marks / 32) return false;
  for (size_t i = 0; i < close.size(); ++i) {
    for (size_t j = i + 1; j < close.size() && close[j].extent.meets(close[i].extent); ++j) {
      if (!lie_apart(outputs[close[i].number], outputs[close[j].number])) return false;
    }
  }
  return true;
}

/// The number of an output that shares an element with another one, among those whose ranges meet; -1 if none
/// does.
int find_double(const Tensors& outputs, const std::vector<Output>& close) {
  if (all_lie_apart(outputs, close)) return -1;
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
  throw ValueError(
      fmt::format("{}: {} has {}, so that some of its elements are one place in memory (as after "
                  "expand()), and cannot be written; pass its clone()",
                  what, which, describe_layout(output)));
}

bool is_same_place(const at::Tensor& a, const at::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && a.nbytes() == b.nbytes() && a.is_contiguous() &&
         b.is_contiguous();
}

}  // namespace

base::Extent compute_extent(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.numel() == 0) return {};
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  return {begin, begin + (static_cast<uintptr_t>(last) + 1) * tensor.element_size()};
}

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
  return !is_nested && !Places(compute_extent(tensor), tensor.element_size()).take(tensor);
}

bool lie_apart(const at::Tensor& a, const at::Tensor& b) {
  const Extent of_a = compute_extent(a), of_b = compute_extent(b);
  if (!of_a.meets(of_b)) return true;
  return are_disjoint(compute_steps(a), compute_steps(b), static_cast<int64_t>(of_b.begin - of_a.begin));
}

bool may_overlap(const at::Tensor& a, const at::Tensor& b) {
  return compute_extent(a).meets(compute_extent(b));
}

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
    const Extent extent = compute_extent(outputs[i]);
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
    throw ValueError(
        fmt::format("{}: the outputs overlap each other: output {}, of {}, shares memory with another one; "
                    "each needs memory of its own",
                    what, found, describe_layout(outputs[static_cast<size_t>(found)])));
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
    for (const at::Tensor& output : outputs[i]) written.emplace_back(compute_extent(output), i);
  }
  Tensors apart;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Extent read = compute_extent(inputs[i]);
    const bool is_overwritten = std::any_of(written.begin(), written.end(), [&](const auto& output) {
      return output.second != i && output.first.meets(read);
    });
    apart.push_back(is_overwritten ? inputs[i].clone() : inputs[i]);
  }
  return apart;
}

}  // namespace lockstep
