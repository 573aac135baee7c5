// Batches made ahead of their use by threads of this process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/state/state_dict.h"

namespace lockstep {

/// Names and meanings are those of torch.utils.data.DataLoader's arguments.
struct LoaderOptions {
  int64_t batch_size = 8;   ///< samples; at least 1
  bool drop_last = false;   ///< true: leave out the last batch where it is shorter
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
  int64_t batch_size() const;
  int64_t next_batch() const;  ///< the number of the batch that next() gives
  void go_to(int64_t batch);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The number of the batch at which a loader's state stands.
int64_t batch_of_state(const StateDict& state, int64_t batch_size, int64_t num_batches);

}  // namespace detail

/// Calls `collate(indices of one batch)` for consecutive batches of `indices` and hands the results out in
/// order: one pass; make another for the next epoch. With workers, collate runs on several threads at once,
/// at most num_workers x prefetch_factor batches ahead. An exception in collate is rethrown by next() at its
/// batch; the call after that goes on with the next batch. The destructor stops and joins the workers, also
/// in the middle; it waits for the calls of collate that are running. next() is for one thread.
template <class Batch>
class Loader {
 public:
  /// Makes a batch of the samples with these numbers. With workers it must be thread-safe.
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

  /// Counts the batches of the whole pass. The last batch is shorter when batch_size does not divide the
  /// indices, or drop_last leaves it out.
  int64_t num_batches() const { return engine_.num_batches(); }

  /// How many samples next() has given: for a checkpoint in the middle of a pass.
  StateDict state_dict() const { return {{}, {{"samples", engine_.next_batch() * engine_.batch_size()}}}; }
  /// Goes on there, in a loader of the same indices; batches that were made ahead are dropped. Throws
  /// ValueError for a position that is not between two batches of this loader. Blocks until none is being made.
  void load_state_dict(const StateDict& state) {
    engine_.go_to(detail::batch_of_state(state, engine_.batch_size(), engine_.num_batches()));
  }

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
