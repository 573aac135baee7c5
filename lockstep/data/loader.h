// Batches made ahead of their use by threads of this process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep {

struct LoaderOptions {
  int64_t batch_size = 8;
  bool drop_last = false;
  int num_workers = 0;      ///< threads; 0: made in the caller
  int prefetch_factor = 2;  ///< batches ready or in work per worker
};

namespace detail {

/// The part of Loader that does not depend on the type of a batch.
class LoaderEngine {
 public:
  using Make = std::function<std::shared_ptr<void>(const std::vector<int64_t>&)>;
  LoaderEngine(std::vector<int64_t> indices, Make make, const LoaderOptions& options);
  ~LoaderEngine();
  LoaderEngine(LoaderEngine&&) noexcept;
  LoaderEngine& operator=(LoaderEngine&&) noexcept;
  std::shared_ptr<void> next();  ///< null after the last
  int64_t num_batches() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace detail

/// Calls `collate(indices of one batch)` for consecutive batches of `indices` and hands the results out in
/// order: one pass; make another for the next epoch. With workers, collate runs on several threads at once,
/// at most num_workers x prefetch_factor batches ahead. An exception in collate is rethrown by next() at its
/// batch; the call after that goes on with the next batch. The destructor stops and joins the workers, also
/// in the middle; it waits for the calls of collate that are running. next() is for one thread.
template <class Batch>
class Loader {
 public:
  using Collate = std::function<Batch(const std::vector<int64_t>&)>;

  /// Throws ValueError for a batch_size or prefetch_factor below 1, negative num_workers or no collate.
  Loader(std::vector<int64_t> indices, Collate collate, LoaderOptions options = {})
      : engine_(std::move(indices), make(std::move(collate)), options) {}

  /// The next batch, or nullopt after the last. Blocks until it is made.
  std::optional<Batch> next() {
    const auto batch = engine_.next();
    if (!batch) return std::nullopt;
    return std::move(*static_cast<Batch*>(batch.get()));
  }

  /// Of the whole pass; the last one is shorter when batch_size does not divide the indices, or left out by
  /// drop_last.
  int64_t num_batches() const { return engine_.num_batches(); }

 private:
  static detail::LoaderEngine::Make make(Collate collate) {
    if (!collate) return nullptr;
    return [collate = std::move(collate)](const std::vector<int64_t>& indices) -> std::shared_ptr<void> {
      return std::make_shared<Batch>(collate(indices));
    };
  }

  detail::LoaderEngine engine_;
};

}  // namespace lockstep
