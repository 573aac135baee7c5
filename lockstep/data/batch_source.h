// Where a DataLoader's batches come from.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "lockstep/data/data_loader.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/epoch_position.h"
#include "lockstep/state/state_dict.h"

namespace lockstep::detail {

/// The batches of one pass after the other. For one thread at a time, but what next() returns may run beside all else.
class BatchSource {
 public:
  BatchSource() = default;
  virtual ~BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  /// What makes the next batch; empty at the end, also when it is asked again. An exception counts as that batch.
  virtual std::function<Batch()> next() = 0;
  /// The next one is `batch` of the pass that draw(), place_of() or follow() has prepared.
  virtual void go_to(int64_t batch) = 0;
  /// Prepares a new pass.
  virtual void draw() = 0;
  /// The user has got the pass under way to its end.
  virtual void ended() = 0;
  /// Whether the user has said, after such an end, that another pass follows.
  virtual bool is_renewed() const = 0;
  /// Batches of the pass under way; kUnknown where only its end tells.
  virtual int64_t num_batches() const = 0;
  /// The numbers of the samples of a batch; none if they have none.
  virtual std::vector<int64_t> samples_of(int64_t batch) const = 0;
  /// Whether go_to() reads nothing.
  virtual bool has_numbers() const = 0;
  /// The state after `batches`.
  virtual StateDict save(int64_t batches) const = 0;
  /// Prepares the pass of `state` and returns the batch to go on with. Throws ValueError for one that does not fit.
  virtual int64_t place_of(const StateDict& state) = 0;

  /// When the first batch is wanted, after `batches`: prepares the pass in the order of now, and returns the batch to go on
  /// with. Throws ValueError if it does not have the place.
  virtual int64_t follow(int64_t batches) = 0;

  static constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
};

/// Samples by number.
class NumberedBatches final : public BatchSource {
 public:
  NumberedBatches(std::function<Batch(const std::vector<int64_t>&)> collate, std::vector<int64_t> indices,
                  const DataLoaderOptions& options);
  /// The order of each pass is what `sampler` gives then. `position`: of that sampler; may be null.
  void draw_from(std::function<std::vector<int64_t>()> sampler, const EpochPosition* position) {
    sampler_ = std::move(sampler);
    position_ = position;
  }

  std::function<Batch()> next() override;
  void go_to(int64_t batch) override;
  void draw() override;
  void ended() override;
  bool is_renewed() const override;
  int64_t num_batches() const override { return batches_in(indices_); }
  std::vector<int64_t> samples_of(int64_t batch) const override;
  bool has_numbers() const override { return true; }
  StateDict save(int64_t batches) const override;
  int64_t place_of(const StateDict& state) override;
  int64_t follow(int64_t batches) override;

 private:
  void look();
  bool is_of_another_epoch() const;
  int64_t batches_in(const std::vector<int64_t>& order) const;
  void check_place(int64_t samples, std::optional<int64_t> saved_of_pass);

  std::function<Batch(const std::vector<int64_t>&)> collate_;
  std::vector<int64_t> indices_;
  std::optional<std::vector<int64_t>> drawn_{};      // of the next pass
  EpochPosition::Pass pass_{}, drawn_pass_{};        // of `indices_` and `drawn_`
  std::optional<int64_t> saved_of_pass_{};           // samples, as place_of() has found them
  std::optional<int64_t> saved_epoch_{};             // of the place, until a batch is wanted
  std::function<std::vector<int64_t>()> sampler_{};  // none: `indices_` for good
  const EpochPosition* position_ = nullptr;
  int64_t batch_size_;
  bool drop_last_;
  int64_t next_ = 0;
};

/// This rank's batches of a dataset that gives them one after the other.
class ShardedBatches final : public BatchSource {
 public:
  /// `num_replicas`, `rank`: that have been checked. `ranks_apart`: so many ranks read batches of their own; 0: they share
  /// out what all read.
  ShardedBatches(IterableDataset dataset, int64_t batch_size, int num_replicas, int rank, int ranks_apart)
      : dataset_(std::move(dataset)),
        batch_size_(batch_size),
        num_replicas_(num_replicas),
        rank_(rank),
        ranks_apart_(ranks_apart) {}

  std::function<Batch()> next() override;
  void go_to(int64_t batch) override;
  void draw() override {}
  void ended() override {}
  bool is_renewed() const override { return false; }
  int64_t num_batches() const override { return kUnknown; }
  std::vector<int64_t> samples_of(int64_t /*batch*/) const override { return {}; }
  bool has_numbers() const override { return false; }
  StateDict save(int64_t batches) const override;
  int64_t place_of(const StateDict& state) override;
  int64_t follow(int64_t batches) override { return batches; }

 private:
  IterableDataset dataset_;
  int64_t batch_size_;
  int num_replicas_, rank_, ranks_apart_;
  bool has_a_round_ = false;  // each rank has got a batch
  bool has_ended_ = false;
};

}  // namespace lockstep::detail
