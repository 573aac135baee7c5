#include "lockstep/comm/group/process_group_arguments.h"

#include <sstream>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

using TensorList = std::vector<at::Tensor>;

void check_rank(const char* what, int rank, int size) {
  if (rank < 0 || rank >= size) {
    throw ValueError(std::string(what) + " " + std::to_string(rank) + " is outside the group of " +
                     std::to_string(size) + " ranks");
  }
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
  throw ValueError(std::string(what) + " needs " + std::to_string(expected) +
                   " tensors here, one per rank where there " + "are any, and got " + std::to_string(found));
}

void check_multiple(const char* what, const at::Tensor& large, const at::Tensor& small, int size) {
  if (large.scalar_type() == small.scalar_type() && large.numel() == small.numel() * size) return;
  throw ValueError(std::string(what) + ": the larger tensor must have " + std::to_string(size) +
                   " times the " + std::to_string(small.numel()) +
                   " elements of the smaller and its dtype, but has " + std::to_string(large.numel()));
}

void check_pairs(const char* what, const TensorList& outputs, const TensorList& inputs) {
  if (outputs.size() == inputs.size()) return;
  throw ValueError(std::string(what) + " needs one output per input, not " + std::to_string(outputs.size()) +
                   " for " + std::to_string(inputs.size()));
}

TensorList check_coalesced(const char* what, const TensorList& outputs, const TensorList& inputs) {
  check_pairs(what, outputs, inputs);
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
