// Samples and batches: tensors by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
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

/// Samples that come one after the other, without numbers: torch.utils.data.IterableDataset. It makes its batches
/// itself, from a stream, a database or files that are read piece by piece.
///
///     lockstep::IterableDataset lines{
///         .begin = [&] { file = std::ifstream("train.txt"); },
///         .next = [&](int64_t batch_size) -> std::function<lockstep::Batch()> {
///           std::vector<std::string> read = some_lines(file, batch_size);
///           if (read.empty()) return {};                                  // the end of the pass
///           return [read = std::move(read)] { return tokenize(read); };  // a worker of the loader calls it
///         }};
struct IterableDataset {
  /// Called at the beginning of each pass, while next() is not running.
  std::function<void()> begin{};
  /// Reads about `batch_size` samples, and returns what makes a batch of them; an empty function after the last ones.
  /// Called by one thread at a time, in the order of the batches, with a loader's workers from their threads. What it
  /// returns is called by several threads at once.
  std::function<std::function<Batch()>(int64_t batch_size)> next{};
};

/// Which batches of an IterableDataset a rank takes: every num_replicas-th, from `rank` on. All ranks read all of them,
/// so each must get the same ones in the same order. The batches behind the last whole round of the ranks are left out,
/// so that all ranks make as many steps. `{.num_replicas = 1, .rank = 0}` is for a dataset that gives each rank its own
/// part.
struct BatchSharding {
  std::optional<int> num_replicas{};  ///< number of ranks; default: of the job that init() joined
  std::optional<int> rank{};          ///< this rank; default: its rank in that job
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
