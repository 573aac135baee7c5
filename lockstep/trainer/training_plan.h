// How many steps a run has, and which samples each rank sees in which micro-batch. Pure arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// The shape of a run, equal on all ranks. A micro-batch is one forward and backward on every rank together.
struct TrainingPlan {
  int64_t samples_per_epoch = 0;            ///< without those that dataloader_drop_last leaves out
  int64_t micro_batches_per_epoch = 0;      ///< Hugging Face's steps_in_epoch
  int64_t update_steps_per_epoch = 0;       ///< optimizer steps
  int64_t max_steps = 0;                    ///< optimizer steps of the whole run
  int64_t num_train_epochs = 0;             ///< epochs begun
  int64_t total_train_batch_size = 0;       ///< samples per optimizer step
  int64_t gradient_accumulation_steps = 1;  ///< micro-batches per optimizer step
  bool is_limited = false;  ///< an epoch has its first samples_per_epoch samples only (limit_train_batches)

  /// Micro-batches of update step `step` of an epoch; the last one of an epoch may have fewer.
  int64_t micro_batches_of(int64_t step) const;
  /// Samples, over all ranks, that count in update step `step` of an epoch.
  int64_t samples_of(int64_t step) const;
};

/// Throws ValueError when there are fewer samples than ranks, or none is left by dataloader_drop_last.
TrainingPlan plan_training(int64_t num_samples, int world_size, const TrainingArguments& arguments);

/// One rank's samples of one epoch, in the order of use, to be cut into micro-batches of
/// per_device_train_batch_size.
struct RankEpoch {
  std::vector<int64_t> indices;  ///< sample numbers; one may be another rank's, see last_is_substitute
  /// The last micro-batch has no sample of this rank: it holds one of another rank's, and counts nothing. So
  /// every rank runs every micro-batch, and each sample still counts exactly once.
  bool last_is_substitute = false;
};

/// Deals `order` (all samples of the epoch, the same on all ranks): rank r takes every world_size-th from r
/// on.
RankEpoch deal_epoch(const std::vector<int64_t>& order, int world_size, int rank, int64_t batch_size,
                     bool drop_last);

}  // namespace lockstep
