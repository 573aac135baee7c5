// Which samples a rank sees, in which order: exactly Python torch's lists.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

struct DistributedSamplerOptions {
  int num_replicas = 1;
  int rank = 0;
  bool shuffle = true;
  uint64_t seed = 0;
  bool drop_last = false;
};

/// torch.utils.data.DistributedSampler: randperm by seed + epoch, padding after the shuffle by repetition
/// from the start, every num_replicas-th index from `rank` on.
class DistributedSampler {
 public:
  DistributedSampler(int64_t dataset_size, DistributedSamplerOptions options);
  void set_epoch(int64_t epoch) { epoch_ = epoch; }
  int64_t num_samples() const;  ///< per rank
  std::vector<int64_t> indices() const;

 private:
  int64_t dataset_size_;
  DistributedSamplerOptions options_;
  int64_t epoch_ = 0;
};

/// Every index of the dataset on exactly one rank: never pads, never drops. For evaluation.
std::vector<int64_t> evaluation_indices(int64_t dataset_size, int num_replicas, int rank);

/// Hugging Face's LengthGroupedSampler order over the whole dataset (mega-batches of 50 x batch_size sorted
/// by length, longest first), drawn by seed + epoch. `batch_size` is the global batch. Rank r takes every
/// num_replicas-th index from r on.
std::vector<int64_t> length_grouped_indices(const std::vector<int64_t>& lengths, int64_t batch_size,
                                            uint64_t seed);

}  // namespace lockstep::data
