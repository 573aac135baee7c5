// Batches made ahead of their use by threads of this process.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/epoch_position.h"
#include "lockstep/data/position_of.h"
#include "lockstep/state/state_dict.h"

namespace lockstep {

/// Names, meanings and defaults are those of torch.utils.data.DataLoader's arguments.
struct DataLoaderOptions {
  int64_t batch_size = 1;   ///< samples; at least 1
  bool drop_last = false;   ///< true: leave out the last batch if it is shorter; not for an IterableDataset
  int num_workers = 0;      ///< threads; 0: made in the caller
  int prefetch_factor = 2;  ///< batches ready or in work per worker
};

namespace detail {
/// A sampler: `indices()` gives the numbers of the samples in the order of the next pass.
template <class S>
concept gives_indices = requires(const S& sampler) {
  { sampler.indices() } -> std::convertible_to<std::vector<int64_t>>;
};
template <class S>
std::vector<int64_t> indices_now(const Dataset& dataset, const S& sampler) {
  if (const auto* const position = PositionOf::find(sampler)) {
    position->check_fits(dataset.size);
    position->look();
  }
  return sampler.indices();
}

template <class D>
concept is_dataset =
    std::convertible_to<const D&, const Dataset&> || std::convertible_to<const D&, const IterableDataset&>;
template <class S>
concept orders_samples =
    gives_indices<std::remove_cvref_t<S>> || std::convertible_to<const S&, std::vector<int64_t>>;
/// The constructors of DataLoader that load take these.
template <class D, class S, class O>
concept can_load = std::convertible_to<const O&, const DataLoaderOptions&> &&
    ((std::convertible_to<const D&, const Dataset&> && orders_samples<S>) ||
     (std::convertible_to<const D&, const IterableDataset&> &&
      std::convertible_to<const S&, const BatchSharding&>));

/// For what can not: the compiler's first error says what to write.
template <class D, class S, class O>
constexpr void refuse_to_load() {
  if constexpr (!is_dataset<D>) {
    static_assert(
        is_dataset<D>,
        "DataLoader takes a lockstep::Dataset: make one of LibTorch's data sets by lockstep::torch_dataset(dataset), of "
        "tensors by lockstep::tensor_dataset({{\"x\", x}, {\"y\", y}})");
  } else if constexpr (std::convertible_to<const D&, const IterableDataset&>) {
    static_assert(
        std::convertible_to<const S&, const BatchSharding&>,
        "DataLoader of an IterableDataset takes a lockstep::BatchSharding and options: write DataLoader(dataset, "
        "lockstep::BatchSharding{}, {.batch_size = 32})");
  } else if constexpr (!orders_samples<S>) {
    static_assert(
        orders_samples<S>,
        "DataLoader takes the samples' order before its options: write DataLoader(dataset, "
        "lockstep::DistributedSampler(dataset), {.batch_size = 32}), or give a std::vector<int64_t>");
  } else {
    static_assert(
        std::convertible_to<const O&, const DataLoaderOptions&>,
        "DataLoader takes lockstep::DataLoaderOptions at its end: write DataLoader(dataset, sampler, {.batch_size = 32})");
  }
}
/// In place of an order of samples that is missing.
struct NoOrder {};
}  // namespace detail

/// Passes over some samples of a dataset, batch by batch. A torch::data dataset: see torch_dataset.h.
///
///     lockstep::DistributedSampler sampler(dataset.size);
///     lockstep::DataLoader loader(dataset, sampler, {.batch_size = 32, .num_workers = 2});
///     for (int epoch = 0; epoch < 3; ++epoch) {
///       sampler.set_epoch(epoch);
///       for (auto& batch : loader) loss(ddp(batch["x"]), batch["y"]).backward();
///     }
///
/// With workers the dataset's collate runs on several threads at once, at most num_workers x prefetch_factor
/// batches ahead, from the first batch of the pass on. Random numbers of LibTorch's default generator are then drawn in no
/// fixed order: seed a generator in collate by (seed, epoch, sample), with random_key(). An exception in collate is
/// rethrown by next() at its batch; the call after that goes on with the next batch. The destructor stops and joins the workers, also in the middle; it waits for the calls of
/// collate that are running. A DataLoader is for one thread at a time. One that was moved from can only be assigned
/// to or destroyed.
class DataLoader {
 public:
  /// `indices`: the numbers of the samples, in the order of the pass. Keeps a copy of the dataset's collate.
  /// Throws ValueError for a batch_size or prefetch_factor below 1, negative num_workers or no collate.
  DataLoader(const Dataset& dataset, std::vector<int64_t> indices, const DataLoaderOptions& options = {});
  /// The order of each pass is what `sampler.indices()` gives when it begins. The sampler must outlive the loader, which
  /// keeps a reference to it, so that set_epoch() has an effect; it is moved into the loader if it is a temporary. Throws ValueError
  /// also for one of our samplers that is for more samples than the dataset has.
  template <class S>
  requires detail::gives_indices<std::remove_cvref_t<S>> DataLoader(const Dataset& dataset, S&& sampler,
                                                                    const DataLoaderOptions& options = {})
      : DataLoader(dataset, detail::indices_now(dataset, sampler), options) {
    if constexpr (std::is_lvalue_reference_v<S>) {
      draw_from([from = &sampler] { return from->indices(); }, detail::PositionOf::find(sampler));
    } else {
      auto from = std::make_shared<std::remove_cvref_t<S>>(std::forward<S>(sampler));
      const auto* const position = detail::PositionOf::find(*from);
      draw_from([from = std::move(from)] { return from->indices(); }, position);
    }
  }
  /// The batches of `dataset` that are this rank's. Each begin() is a new pass: it calls the dataset's begin(). Keeps a
  /// copy of the dataset's functions. Throws ValueError as above, for drop_last, and for a rank outside [0,
  /// num_replicas - 1]; Error if num_replicas or rank is not given before init() or after destroy().
  DataLoader(const IterableDataset& dataset, const BatchSharding& sharding,
             const DataLoaderOptions& options = {});
  /// For anything else, in these three: says at compile time what to write.
  template <class D>
  requires(!std::derived_from<D, DataLoader>) explicit DataLoader(const D& dataset)
      : DataLoader(dataset, detail::NoOrder()) {}
  /// See above.
  template <class D>
  DataLoader(const D& dataset, const DataLoaderOptions& /*options*/)
      : DataLoader(dataset, detail::NoOrder()) {}
  /// See above.
  template <class D, class S = std::vector<int64_t>, class O = DataLoaderOptions>
  requires(!detail::can_load<D, S, O>)
      DataLoader(const D& /*dataset*/, const S& /*sampler*/, const O& /*options*/ = {})
      : DataLoader(Dataset(), std::vector<int64_t>()) {
    detail::refuse_to_load<D, S, O>();
  }
  /// Blocks for the calls of collate that are running.
  ~DataLoader();
  DataLoader(DataLoader&&) noexcept;             ///< The other one is left without a pass.
  DataLoader& operator=(DataLoader&&) noexcept;  ///< Ends this one's own pass first, as the destructor does.

  /// The next batch, or nullopt after the last, until the sampler's set_epoch() is called: then a new pass begins; or begin()
  /// begins one. Blocks until it is made. Throws what the dataset throws, and ValueError
  /// where an IterableDataset ends before each rank has a batch.
  std::optional<Batch> next();
  /// The numbers of the samples in the batch that next() gave, or threw for, last; empty before the first and for an
  /// IterableDataset.
  std::vector<int64_t> samples() const;

  /// What begin() returns. It belongs to one pass, takes one batch after the other from next(), and cannot go back.
  class Iterator {
   public:
    /// For begin().
    explicit Iterator(DataLoader& loader) : loader_(loader), batch_(loader.next()) {}
    /// The batch that was taken last.
    Batch& operator*() { return *batch_; }
    /// Takes the next batch: blocks and throws as next() does.
    Iterator& operator++() {
      batch_ = loader_.next();
      return *this;
    }
    /// Whether there are no more batches.
    bool operator==(std::default_sentinel_t /*end*/) const { return !batch_; }

   private:
    DataLoader& loader_;
    std::optional<Batch> batch_;
  };
  /// Begins a pass, with the sampler's indices of now; an earlier one that a loop has left in the middle ends. After a pass
  /// that had an end these are all, also without set_epoch(). The
  /// first begin() after next() or load_state_dict() goes on where they are. Blocks until the first batch is made.
  Iterator begin();
  /// See begin().
  std::default_sentinel_t end() const { return {}; }

  /// Number of batches in a whole pass: the one under way, or else the last one. If batch_size does not divide the number of
  /// samples, the last batch is shorter, or drop_last leaves it out. Throws Error for an IterableDataset that has not been at
  /// its end: how many it gives is known then.
  int64_t num_batches() const;

  /// How many samples next() has given, or batches of an IterableDataset: for a checkpoint in the middle of a pass. Save
  /// this or the sampler's place (advance()), not both: each of them leaves out the samples before it. With one of our
  /// samplers also its epoch, and what decides its order.
  StateDict state_dict() const;
  /// Goes on there, in a loader of the same indices; batches that were made ahead are dropped. The order is what the sampler
  /// gives when the first batch is wanted, so its epoch may be set after this; for one of our samplers another epoch than
  /// the state's is a ValueError then, unless the state's pass is over. An IterableDataset begins
  /// then and is read up to there, also with another number of ranks, if all ranks read the same. Throws ValueError for a
  /// position that is not between two batches of this loader, and for a state of another number of ranks or of a sampler with
  /// another order. Blocks until no batch
  /// is being made.
  void load_state_dict(const StateDict& state);

 private:
  void draw_from(std::function<std::vector<int64_t>()> sampler, const detail::EpochPosition* position);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
