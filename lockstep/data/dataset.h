// Samples and batches: tensors by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// Some samples as tensors by name, such as "image" and "label"; every tensor's first dimension counts samples.
/// Copies share the tensors' memory.
class Batch {
 public:
  /// Without tensors.
  Batch() = default;
  /// From pairs of a name and a tensor. The shapes are not compared.
  Batch(std::initializer_list<std::pair<const std::string, at::Tensor>> tensors) : tensors_(tensors) {}

  /// Throws ValueError that lists the names there are.
  const at::Tensor& operator[](const std::string& name) const;
  /// Whether there is a tensor of this name.
  bool contains(const std::string& name) const { return tensors_.contains(name); }
  /// Adds a tensor, or takes the place of the one of that name.
  void set(const std::string& name, at::Tensor tensor) { tensors_[name] = std::move(tensor); }
  /// Samples; 0 for a batch without tensors.
  int64_t size() const;
  /// Every tensor there; those that are there already are shared.
  Batch to(at::Device device) const;

  /// Iterates over pairs of name and tensor, in the alphabetical order of the names.
  auto begin() const { return tensors_.begin(); }
  /// See begin().
  auto end() const { return tensors_.end(); }

 private:
  std::map<std::string, at::Tensor> tensors_{};
};

/// A fixed number of samples, made into batches by number.
struct Dataset {
  int64_t size = 0;                ///< number of samples
  std::vector<int64_t> lengths{};  ///< one per sample, for group_by_length; may be empty
  /// Makes a batch. Called from the loader's threads, so it must be thread-safe.
  std::function<Batch(const std::vector<int64_t>& indices)> collate{};
};

/// The samples of tensors in memory, whose first dimension counts them: torch.utils.data.TensorDataset with
/// names. Throws ValueError for no tensor, an undefined one, and sizes that differ.
///
///     const auto train = lockstep::tensor_dataset({{"image", images}, {"label", labels}});
Dataset tensor_dataset(const Batch& tensors);

/// Some samples of `dataset`, in the order of `indices`, which may repeat: torch.utils.data.Subset. Throws
/// ValueError for an index that is no sample.
///
///     const auto split = lockstep::train_test_split(all.size, .1, 42);
///     const auto train = lockstep::subset(all, split.train), test = lockstep::subset(all, split.test);
Dataset subset(const Dataset& dataset, std::vector<int64_t> indices);

}  // namespace lockstep
