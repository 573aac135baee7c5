// Where a sampler is: the epoch, and how far in it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/state/state_dict.h"

namespace lockstep::detail {

/// What the samplers' states have in common. `samples` counts those of all ranks together, so that another
/// number of ranks can go on from there.
struct EpochPosition {
  int64_t epoch = 0, samples = 0;

  void set_epoch(int64_t next);
  /// `of_epoch`: samples that the ranks take in an epoch, fewer than dataset_size where some are dropped.
  StateDict save(int64_t dataset_size, uint64_t seed, int64_t of_epoch) const;
  /// `granularity`: how many samples the ranks take together at a time. Throws ValueError that begins with
  /// `who` for another data set or seed, or a position between two such or before the first.
  void load(std::string_view who, const StateDict& state, int64_t dataset_size, uint64_t seed,
            int64_t granularity);
  /// A rank's `indices` of the epoch without those that it has passed; none where all samples have been taken.
  std::vector<int64_t> rest_of(std::vector<int64_t> indices, int64_t dataset_size, int num_replicas) const;
};

}  // namespace lockstep::detail
