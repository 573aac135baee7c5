// The order of training samples of Hugging Face's Trainer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/data/epoch_position.h"
#include "lockstep/state/state_dict.h"

namespace lockstep {
namespace detail {
struct PositionOf;
}  // namespace detail

/// TrainingArguments.train_sampling_strategy.
enum class TrainSamplingStrategy { random, sequential, group_by_length };

/// "random", "sequential" or "group_by_length"; ValueError naming `flag` otherwise.
TrainSamplingStrategy parse_train_sampling_strategy(const std::string& flag, const std::string& text);
/// The name that parse_train_sampling_strategy() takes.
const char* name_of(TrainSamplingStrategy strategy);

/// The arguments of transformers' Trainer that decide which rank sees which sample.
struct TrainSamplerOptions {
  TrainSamplingStrategy strategy = TrainSamplingStrategy::random;  ///< train_sampling_strategy
  int64_t batch_size = 8;                                          ///< per_device_train_batch_size
  int64_t gradient_accumulation_steps = 1;                         ///< only group_by_length depends on it
  int num_replicas = 1;                                            ///< number of ranks
  int rank = 0;                                                    ///< this rank
  uint64_t seed = 42;      ///< TrainingArguments.data_seed or, without one, seed
  bool drop_last = false;  ///< true: leave out what does not give every rank a full batch
};

/// The samples that transformers' Trainer gives to one rank under torchrun, in order; cut into slices of
/// `batch_size`, they are its batches (see batch_shard).
///
/// - random: the Trainer's RandomSampler becomes accelerate's SeedableRandomSampler, which draws randperm by
///   seed + epoch. The lists are equal in every epoch.
/// - sequential: equal in every epoch.
/// - group_by_length: the Trainer draws from each process's global generator, after its DataLoader drew one
///   64-bit number from it. That generator was seeded with the seed, so the lists of the first epoch are equal. What
///   later epochs draw depends in Python on every random number (dropout) drawn before, on each rank for
///   itself, so ranks may disagree there about the permutation; here, epoch e starts afresh from seed + e. A
///   Trainer with a callback that calls torch.manual_seed(seed + epoch) in on_epoch_begin gives equal lists
///   in every epoch.
class TrainSampler {
 public:
  /// `lengths`, in tokens, one a sample: needed by group_by_length, unused otherwise. Throws ValueError for
  /// an empty dataset, a batch size, accumulation or replica count below 1, a rank outside [0, num_replicas -
  /// 1], or lengths that do not match the dataset.
  TrainSampler(int64_t dataset_size, TrainSamplerOptions options, std::vector<int64_t> lengths = {});
  /// Another epoch begins at its first sample. Not in the middle of a pass.
  void set_epoch(int64_t epoch) { position_.set_epoch(epoch); }
  /// This rank's indices for the epoch, without those that advance() has passed; as DistributedSampler's.
  std::vector<int64_t> indices() const;

  /// Each rank has used that many samples: whole batches, but for the last of an epoch. The state says so, for
  /// a checkpoint in the middle of an epoch. Throws as DistributedSampler's.
  void advance(int64_t samples) { position_.advance(samples); }
  /// The epoch and the position in it, and what decides the order; equal on all ranks.
  StateDict state_dict() const { return position_.save(); }
  /// Goes on there: the next pass has what is left of the epoch, also with another number of ranks or another batch size.
  /// Throws ValueError for another data set, seed, strategy or `drop_last`, and where num_replicas x batch_size does not
  /// divide the position; with group_by_length also for other lengths, and another batch_size x
  /// gradient_accumulation_steps, on which that order depends.
  void load_state_dict(const StateDict& state) { position_.load(state); }

 private:
  friend struct detail::PositionOf;

  int64_t dataset_size_;
  TrainSamplerOptions options_;
  std::vector<int64_t> lengths_;
  detail::EpochPosition position_;
};

}  // namespace lockstep
