// How Hugging Face's Trainer divides one order of samples into the ranks' batches.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

/// The part of `indices` that rank `rank` of `num_replicas` works on, in order: cut into slices of
/// `batch_size`, they are its batches. Whole batches go round the ranks: rank r takes batches r, r +
/// num_replicas, ...
///
/// The lists are those of accelerate's BatchSamplerShard with even_batches, as transformers' Trainer uses it:
/// so that every rank has as many batches, all full, the end is filled up with indices from the beginning;
/// with drop_last, what does not give every rank a full batch is left out. With one replica nothing is filled
/// up (accelerate does not shard then): the last batch may be short.
///
/// Throws ValueError when batch_size or num_replicas is less than 1 or the rank is outside [0, num_replicas -
/// 1].
std::vector<int64_t> batch_shard(const std::vector<int64_t>& indices, int64_t batch_size, int num_replicas,
                                 int rank, bool drop_last = false);

}  // namespace lockstep
