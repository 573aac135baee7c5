// Samples as the Trainer sees them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep {

/// Some samples as tensors; every tensor's first dimension counts samples.
struct Batch {
  std::vector<at::Tensor> inputs;  ///< what the model's forward takes
  at::Tensor labels;               ///< int64 [samples], undefined when there are none
};

/// A fixed number of samples, made into batches by number.
struct Dataset {
  int64_t size = 0;
  std::vector<int64_t> lengths;  ///< one per sample, for group_by_length; may be empty
  /// Makes a batch. Called from the loader's threads, so it must be thread-safe.
  std::function<Batch(const std::vector<int64_t>& indices)> collate;
};

}  // namespace lockstep
