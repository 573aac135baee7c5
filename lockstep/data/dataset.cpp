#include "lockstep/data/dataset.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

const at::Tensor& Batch::operator[](const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::string names;
  for (const auto& [known, tensor] : tensors_) names += (names.empty() ? "" : ", ") + known;
  throw ValueError(
      fmt::format("the batch has no tensor \"{}\"; it has {}", name, names.empty() ? "none" : names));
}

int64_t Batch::size() const {
  return tensors_.empty() || tensors_.begin()->second.dim() == 0 ? 0 : tensors_.begin()->second.size(0);
}

Batch Batch::to(at::Device device) const {
  Batch moved;
  for (const auto& [name, tensor] : tensors_) moved.tensors_[name] = tensor.to(device);
  return moved;
}

Dataset tensor_dataset(const Batch& tensors) {
  if (tensors.begin() == tensors.end()) throw ValueError("tensor_dataset: there is no tensor");
  const auto& first = *tensors.begin();
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || tensor.dim() == 0) {
      throw ValueError(fmt::format("tensor_dataset: \"{}\" is {}; its first dimension must count samples",
                                   name, tensor.defined() ? "a scalar" : "undefined"));
    }
    if (tensor.size(0) != first.second.size(0)) {
      throw ValueError(
          fmt::format("tensor_dataset: \"{}\" has {} samples, \"{}\" has {}; they must have as many", name,
                      tensor.size(0), first.first, first.second.size(0)));
    }
  }
  return {.size = first.second.size(0), .collate = [tensors](const std::vector<int64_t>& indices) {
            const at::Tensor rows = at::tensor(indices, at::kLong);
            Batch batch;
            for (const auto& [name, tensor] : tensors) {
              batch.set(name, at::index_select(tensor, 0, rows.to(tensor.device())));
            }
            return batch;
          }};
}

Dataset subset(const Dataset& dataset, std::vector<int64_t> indices) {
  Dataset part{.size = static_cast<int64_t>(indices.size()), .lengths = {}, .collate = {}};
  for (const int64_t index : indices) {
    if (index < 0 || index >= dataset.size) {
      throw ValueError(fmt::format("subset: there is no sample {}; the dataset has {}", index, dataset.size));
    }
    if (!dataset.lengths.empty()) part.lengths.push_back(dataset.lengths[static_cast<size_t>(index)]);
  }
  part.collate = [collate = dataset.collate, all = std::move(indices)](const std::vector<int64_t>& chosen) {
    std::vector<int64_t> originals;
    originals.reserve(chosen.size());
    for (const int64_t index : chosen) originals.push_back(all.at(static_cast<size_t>(index)));
    return collate(originals);
  };
  return part;
}

}  // namespace lockstep
