// The order of training samples of Hugging Face's Trainer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// TrainingArguments.train_sampling_strategy.
enum class TrainSamplingStrategy { random, sequential, group_by_length };

/// Throws ValueError that lists the names when `name` is none of random, sequential, group_by_length.
TrainSamplingStrategy parse_train_sampling_strategy(const std::string& name);
const char* name_of(TrainSamplingStrategy strategy);

struct TrainSamplerOptions {
  TrainSamplingStrategy strategy = TrainSamplingStrategy::random;
  int64_t batch_size = 8;  ///< per_device_train_batch_size
  int64_t gradient_accumulation_steps = 1;
  int num_replicas = 1;
  int rank = 0;
  uint64_t seed = 42;  ///< TrainingArguments.data_seed or, without one, seed
  bool drop_last = false;
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
  void set_epoch(int64_t epoch) { epoch_ = epoch; }
  /// This rank's indices for the epoch.
  std::vector<int64_t> indices() const;

 private:
  int64_t dataset_size_;
  TrainSamplerOptions options_;
  std::vector<int64_t> lengths_;
  int64_t epoch_ = 0;
};

}  // namespace lockstep
