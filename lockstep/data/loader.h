// Batches made ahead of their use by threads of this process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace lockstep::data {

struct LoaderOptions {
  int64_t batch_size = 8;
  bool drop_last = false;
  int num_workers = 0;      ///< threads; 0: made in the caller
  int prefetch_factor = 2;  ///< batches ready or in work per worker
};

/// Calls `collate(indices of one batch)` for consecutive batches of `indices` and hands the results out in
/// order. An exception in collate is rethrown by next() at its batch. The destructor stops and joins the
/// workers.
template <class Batch>
class Loader {
 public:
  using Collate = std::function<Batch(const std::vector<int64_t>&)>;
  Loader(std::vector<int64_t> indices, Collate collate, LoaderOptions options = {});
  ~Loader();
  /// The next batch, or nullopt after the last. Blocks until it is made.
  std::optional<Batch> next();
  int64_t num_batches() const;
};

}  // namespace lockstep::data
