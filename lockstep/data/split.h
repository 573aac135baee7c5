// Parts of a dataset, by seed: the lists of torch's random_split and of Hugging Face datasets' train_test_split
// and shuffle.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

namespace lockstep {

/// A share of the samples (a floating-point number: .1) or a number of samples (a whole number: 1000).
using SplitSize = std::variant<double, int64_t>;

/// Sample numbers of the two parts.
struct TrainTestSplit {
  std::vector<int64_t> train;  ///< numbers of the training samples
  std::vector<int64_t> test;   ///< numbers of the test samples
};

/// Dataset.train_test_split(test_size, seed=seed) of the datasets library: the first samples of
/// shuffled_indices() are the test set, the others the training set. A share is rounded up: .07 of 100 are 8.
/// Both are empty where the dataset is. Throws ValueError for a share outside (0, 1), for a number of samples
/// that leaves one side empty, and for a share that leaves no training sample.
TrainTestSplit train_test_split(int64_t dataset_size, SplitSize test_size, uint64_t seed);

/// Dataset.shuffle(seed=seed) of the datasets library: numpy.random.default_rng(seed).permutation(dataset_size).
/// random_indices() (sampler.h) gives torch's permutation. Throws ValueError for a size below 0 or above 2^32.
std::vector<int64_t> shuffled_indices(int64_t dataset_size, uint64_t seed);

/// torch.utils.data.random_split(dataset, lengths, torch.Generator().manual_seed(seed)): torch's permutation cut
/// into parts. `lengths` are numbers of samples that sum to dataset_size, or shares that sum to 1. Shares are
/// rounded down; what is left goes one by one to the parts, the first first. A part may be empty. Throws
/// ValueError for another sum, a negative length, and shares among numbers.
///
///     auto parts = lockstep::random_split(1000, {.8, .1, .1}, 42);
std::vector<std::vector<int64_t>> random_split(int64_t dataset_size, const std::vector<SplitSize>& lengths,
                                               uint64_t seed);

}  // namespace lockstep
