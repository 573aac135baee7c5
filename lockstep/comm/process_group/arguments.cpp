#include "lockstep/comm/process_group/arguments.h"

#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/comm/memory_overlap.h"

namespace lockstep {

using TensorList = std::vector<at::Tensor>;

void check_rank(const char* what, int rank, int size) {
  if (rank >= 0 && rank < size) return;
  throw ValueError(fmt::format("{} {} is outside the group of {} ranks", what, rank, size));
}

void check_like(const char* what, const at::Tensor& tensor, const at::Tensor& like) {
  if (tensor.scalar_type() == like.scalar_type() && tensor.sizes() == like.sizes()) return;
  std::ostringstream text;
  text << what << " has shape " << tensor.sizes() << " and dtype " << tensor.scalar_type() << ", expected "
       << like.sizes() << " and " << like.scalar_type();
  throw ValueError(text.str());
}

void check_count(const char* what, size_t found, size_t expected) {
  if (found == expected) return;
  throw ValueError(fmt::format("{} needs {} tensors here, one per rank where there are any, and got {}", what,
                               expected, found));
}

void check_multiple(const char* what, const at::Tensor& large, const at::Tensor& small, int size) {
  if (large.scalar_type() == small.scalar_type() && large.numel() == small.numel() * size) return;
  throw ValueError(fmt::format(
      "{}: the larger tensor must have {} times the {} elements of the smaller and its dtype, but "
      "has {}",
      what, size, small.numel(), large.numel()));
}

TensorList check_coalesced(const char* what, const TensorList& outputs, const TensorList& inputs) {
  if (outputs.size() != inputs.size()) {
    throw ValueError(
        fmt::format("{} needs one output per input, not {} for {}", what, outputs.size(), inputs.size()));
  }
  check_apart(what, outputs);
  std::vector<TensorList> each;
  for (const at::Tensor& output : outputs) each.push_back({output});
  return apart_from_others(inputs, each);
}

TensorList like_on_every_rank(const at::Tensor& tensor, int size) {
  TensorList outputs;
  for (int r = 0; r < size; ++r) outputs.push_back(at::empty_like(tensor, at::MemoryFormat::Contiguous));
  return outputs;
}

}  // namespace lockstep
