// What a process trains on in an epoch, step by step.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/data/data_loader.h"
#include "lockstep/data/dataset.h"
#include "lockstep/trainer/training_arguments.h"
#include "lockstep/trainer/training_plan.h"

namespace lockstep::detail {

/// A rank's part in a step.
struct RankStep {
  std::vector<Batch> micro_batches{};
  bool last_is_substitute = false;  ///< RankEpoch's, if the epoch ends with this step
};

/// The rest of an epoch for one process: the samples of its rank, or of its logical ranks.
class EpochData {
 public:
  /// What it is made of. Dataset and plan stay the caller's, and outlive it.
  struct Options {
    const Dataset& dataset;
    const TrainingPlan& plan;
    int64_t batch_size = 1;  ///< of a micro-batch
    bool drop_last = false;
    int num_workers = 0;  ///< of the process, however many ranks it has
    int prefetch_factor = 2;
    int ranks = 1;           ///< among which samples are divided
    std::vector<int> own{};  ///< those of this process
  };
  /// `order`: all samples of the epoch, the same on all processes. It begins behind `steps_done` steps.
  EpochData(std::vector<int64_t> order, int64_t steps_done, Options options);

  /// The next step, for each of the process's own ranks. Blocks until its batches are there; throws what collate
  /// throws.
  std::vector<RankStep> next_step();
  /// The numbers of the samples of the step that next_step() gave last.
  std::vector<int64_t> samples() const;

 private:
  struct RankData {
    RankEpoch dealt;
    DataLoader loader;
  };
  bool is_last(int64_t step) const { return step + 1 == options_.plan.update_steps_per_epoch; }

  Options options_;
  int64_t steps_done_;
  std::vector<RankData> ranks_{};
};

}  // namespace lockstep::detail
