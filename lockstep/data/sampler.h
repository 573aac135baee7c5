// Which samples a rank sees, in which order: exactly Python torch's lists.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/epoch_position.h"
#include "lockstep/state/state_dict.h"

namespace lockstep {
namespace detail {
struct PositionOf;
template <class Samples>
concept counts_samples =
    std::convertible_to<const Samples&, int64_t> || std::convertible_to<const Samples&, const Dataset&>;
template <class T>
struct NeedsTorchDataSampler {
  static_assert(
      !std::is_void_v<T>,
      "torch::data::make_data_loader() copies its sampler: give it lockstep::TorchDataSampler(sampler)");
};
}  // namespace detail

/// Names and meanings are those of torch.utils.data.DistributedSampler's arguments.
struct DistributedSamplerOptions {
  std::optional<int> num_replicas{};  ///< number of ranks; default: of the job that init() joined
  std::optional<int> rank{};          ///< this rank; default: its rank in that job
  bool shuffle = true;                ///< false: in the order of the data set
  uint64_t seed = 0;                  ///< the same on all ranks
  bool drop_last = false;  ///< true: drop the samples that do not divide, instead of repeating some
};

/// torch.utils.data.DistributedSampler: randperm by seed + epoch, padding after the shuffle by repetition
/// from the start, every num_replicas-th index from `rank` on. With more replicas than samples every rank
/// still gets one, by repetition; with drop_last none does.
class DistributedSampler {
 public:
  /// Throws ValueError for an empty dataset and for a rank outside [0, num_replicas - 1], and Error if
  /// num_replicas or rank is not given before init() or after destroy().
  explicit DistributedSampler(int64_t dataset_size, DistributedSamplerOptions options = {});
  /// For the samples of `dataset`.
  explicit DistributedSampler(const Dataset& dataset, DistributedSamplerOptions options = {})
      : DistributedSampler(dataset.size, options) {}
  /// For anything else: says at compile time what to write.
  template <class Samples>
  requires(
      !detail::counts_samples<Samples> &&
      !std::is_convertible_v<
          const Samples&,
          const DistributedSampler&>) explicit DistributedSampler(const Samples& /*samples*/,
                                                                  const DistributedSamplerOptions& /*options*/
                                                                  = {})
      : DistributedSampler(int64_t{0}) {
    static_assert(
        detail::counts_samples<Samples>,
        "DistributedSampler takes the number of samples or a lockstep::Dataset: of LibTorch's data sets write "
        "DistributedSampler(dataset.size().value()), of containers DistributedSampler(values.size())");
  }
  /// Chooses the permutation of the next indices(). The same epoch gives the same list; another one begins at
  /// its first sample. Not in the middle of a pass: advance() would count samples of another order, and throws.
  void set_epoch(int64_t epoch) { position_.set_epoch(epoch); }
  int64_t dataset_size() const { return dataset_size_; }  ///< number of samples
  int64_t num_samples() const;                            ///< per rank, of a whole epoch
  /// This rank's indices for the epoch: num_samples(), without those that advance() has passed. When it has passed all,
  /// they are all there again, for the next pass. Throws Error where the epoch of a loaded state is over and set_epoch()
  /// has named none, when it is asked again: whether another pass begins cannot be known then.
  std::vector<int64_t> indices() const;

  /// Each rank has used that many samples, of a batch for example: the state says so, for a checkpoint in the
  /// middle of an epoch. Throws Error where set_epoch() or load_state_dict() was called after these samples were drawn.
  void advance(int64_t samples) { position_.advance(samples); }
  /// The epoch and the position in it, and what decides the order; equal on all ranks.
  StateDict state_dict() const { return position_.save(); }
  /// Goes on there: the next pass has what is left of the epoch, which may be nothing, also with another number of ranks;
  /// those after it are whole. Throws ValueError for another data set, seed, `shuffle` or `drop_last`, and where the ranks
  /// cannot divide what is left in the same way.
  void load_state_dict(const StateDict& state) { position_.load(state); }

  /// For torch::data::make_data_loader(), which takes a TorchDataSampler: says so at compile time.
  using BatchRequestType = detail::NeedsTorchDataSampler<void>;

 private:
  friend struct detail::PositionOf;

  int64_t dataset_size_;
  DistributedSamplerOptions options_;
  int num_replicas_;
  int rank_;
  detail::EpochPosition position_;
};

/// A DistributedSampler for torch::data::make_data_loader() and ChunkDataset, which copy what they are given: all copies
/// have one sampler, so that set_epoch() has an effect on the next begin().
///
///     lockstep::TorchDataSampler sampler(dataset);
///     auto loader = torch::data::make_data_loader(std::move(dataset), sampler, 32);
///     for (int epoch = 0; epoch < 3; ++epoch) {
///       sampler.set_epoch(epoch);
///       for (auto& batch : *loader) loss(ddp(batch.data), batch.target).backward();
///     }
class TorchDataSampler {
 public:
  using BatchRequestType = std::vector<size_t>;  ///< what next() gives
  /// As the constructor of DistributedSampler.
  explicit TorchDataSampler(int64_t dataset_size, DistributedSamplerOptions options = {})
      : sampler_(std::make_shared<DistributedSampler>(dataset_size, options)) {
    reset();
  }
  /// For the samples of one of LibTorch's data sets. Throws ValueError for one whose size() is nullopt.
  template <class D>
  requires requires(const D& dataset) {
    { dataset.size() } -> std::convertible_to<std::optional<size_t>>;
  }
  explicit TorchDataSampler(const D& dataset, DistributedSamplerOptions options = {})
      : TorchDataSampler(known_size(dataset.size()), options) {}
  /// Refers to `sampler`, which must outlive the loader. Begins with its indices of now.
  explicit TorchDataSampler(DistributedSampler& sampler) : sampler_(std::shared_ptr<void>(), &sampler) {
    reset();
  }
  explicit TorchDataSampler(const DistributedSampler&& sampler) = delete;  ///< It would not live long enough.
  /// The sampler of all copies: for advance() and its state_dict().
  DistributedSampler& sampler() { return *sampler_; }
  /// As DistributedSampler's, for all copies: the next begin() of a loader has that epoch's order.
  void set_epoch(int64_t epoch) { sampler_->set_epoch(epoch); }
  /// Begins a pass with the sampler's indices of now; after a pass that gave all of them, with all. Throws ValueError for a
  /// `new_size` that is not the sampler's
  /// dataset_size(). A ChunkDataset gives its number of chunks.
  void reset(std::optional<size_t> new_size = std::nullopt);
  /// The next `batch_size` indices, fewer at the end, std::nullopt after it. Throws ValueError for a batch_size of 0.
  std::optional<std::vector<size_t>> next(size_t batch_size);
  /// For ChunkDataset's save(), which has no use for it: throws Error, since the DistributedSampler has a state_dict().
  template <class Archive>
  void save(Archive& /*archive*/) const {
    refuse_archive();
  }
  /// See save().
  template <class Archive>
  void load(Archive& /*archive*/) {
    refuse_archive();
  }

 private:
  [[noreturn]] static void refuse_archive();
  static int64_t known_size(std::optional<size_t> size);

  std::shared_ptr<DistributedSampler> sampler_;
  detail::EpochPosition::Pass pass_{};
  std::vector<int64_t> indices_{};
  size_t given_ = 0, asked_ = 0;  // of them, and at a time
};

/// torch.randperm(dataset_size) with a torch.Generator seeded with `seed`: one epoch of a RandomSampler.
/// Throws ValueError for a negative size.
std::vector<int64_t> random_indices(int64_t dataset_size, uint64_t seed);

/// One epoch of torch.utils.data.WeightedRandomSampler(weights, num_samples, replacement) with a torch.Generator
/// seeded with `seed`: sample i is drawn with a probability in proportion to weights[i]. Without replacement none is
/// drawn twice. Throws ValueError for num_samples below 1, no weights or more than 2^24, a weight that is negative
/// or not finite, weights that are all 0, and, without replacement, fewer weights above 0 than num_samples.
std::vector<int64_t> weighted_random_indices(const std::vector<double>& weights, int64_t num_samples,
                                             bool replacement, uint64_t seed);

/// Every index of the dataset on exactly one rank: never pads, never drops. For evaluation. Rank r gets r,
/// r + num_replicas, ...: sample i is the (i / num_replicas)-th of rank i % num_replicas, so results gathered
/// from the ranks are restored to input order by taking one from each rank in turn. A rank's list may be
/// empty. Throws ValueError as DistributedSampler does.
std::vector<int64_t> evaluation_indices(int64_t dataset_size, int num_replicas, int rank);

/// The order of transformers' get_length_grouped_indices(lengths, batch_size, generator=g) over the whole
/// dataset, with a torch.Generator seeded with `seed`: a permutation in mega-batches of 50 x batch_size
/// (smaller when that would give fewer than four), each sorted by length, longest first; the longest sample
/// of all stands first. Hugging Face's Trainer passes per_device_train_batch_size x
/// gradient_accumulation_steps as batch_size and divides the list by batches (batch_shard.h); train_sampler.h
/// does all of it. Throws ValueError when `lengths` is empty or batch_size is less than 1.
std::vector<int64_t> length_grouped_indices(const std::vector<int64_t>& lengths, int64_t batch_size,
                                            uint64_t seed);

}  // namespace lockstep
