#include "lockstep/data/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/data/position_of.h"

namespace lockstep {
namespace {

/// The size.
int64_t checked(int64_t dataset_size, int num_replicas, int rank) {
  if (dataset_size < 1) {
    throw ValueError(fmt::format("the dataset has {} samples; expected at least one", dataset_size));
  }
  if (num_replicas < 1)
    throw ValueError(fmt::format("num_replicas is {}; expected at least 1", num_replicas));
  if (rank < 0 || rank >= num_replicas) {
    throw ValueError(
        fmt::format("Invalid rank {}, rank should be in the interval [0, {}]", rank, num_replicas - 1));
  }
  return dataset_size;
}

std::vector<int64_t> every_nth(const std::vector<int64_t>& indices, int64_t total, int64_t first,
                               int64_t step) {
  const auto size = static_cast<int64_t>(indices.size());
  std::vector<int64_t> mine;
  mine.reserve(static_cast<size_t>(total / step));
  for (int64_t i = first; i < total; i += step) mine.push_back(indices[static_cast<size_t>(i % size)]);
  return mine;
}

}  // namespace

DistributedSampler::DistributedSampler(int64_t dataset_size, DistributedSamplerOptions options)
    : dataset_size_(dataset_size),
      options_(options),
      num_replicas_(options.num_replicas ? *options.num_replicas : default_world().size()),
      rank_(options.rank ? *options.rank : default_world().rank()),
      position_({.sampler = "DistributedSampler",
                 .dataset_size = checked(dataset_size, num_replicas_, rank_),
                 .seed = options.seed,
                 .of_pass = num_samples() * num_replicas_,
                 .at_a_time = num_replicas_,
                 .num_replicas = num_replicas_,
                 .choices = {{"shuffle", options.shuffle}, {"drop_last", options.drop_last}}}) {}

int64_t DistributedSampler::num_samples() const {
  const int64_t replicas = num_replicas_;
  return options_.drop_last ? dataset_size_ / replicas : (dataset_size_ + replicas - 1) / replicas;
}

std::vector<int64_t> DistributedSampler::indices() const {
  std::vector<int64_t> all;
  if (options_.shuffle) {
    all = random_indices(dataset_size_, options_.seed + static_cast<uint64_t>(position_.epoch()));
  } else {
    all.resize(static_cast<size_t>(dataset_size_));
    std::iota(all.begin(), all.end(), 0);
  }
  return position_.rest_of(every_nth(all, num_samples() * num_replicas_, rank_, num_replicas_));
}

const detail::EpochPosition* detail::PositionOf::of(const DistributedSampler& sampler) {
  return &sampler.position_;
}

void TorchDataSampler::reset(std::optional<size_t> new_size) {
  if (new_size && static_cast<int64_t>(*new_size) != sampler_->dataset_size()) {
    throw ValueError(fmt::format(
        "TorchDataSampler cannot be reset to {} samples; the DistributedSampler behind it is for {}",
        *new_size, sampler_->dataset_size()));
  }
  const auto& position = *detail::PositionOf::of(*sampler_);
  // LibTorch's loader asks ahead. So a pass of which it has all may have been left,
  // unless what was not counted is less than a batch, which it drops.
  const auto batch_size = static_cast<int64_t>(asked_);
  if (asked_ > 0 && given_ == indices_.size() &&
      (!position.was_counted(pass_) || position.samples_left() < batch_size)) {
    position.pass_ended(pass_, batch_size);
  }
  pass_ = position.begin_pass(pass_);
  indices_ = sampler_->indices();
  given_ = asked_ = 0;
}

int64_t TorchDataSampler::known_size(std::optional<size_t> size) {
  if (!size)
    throw ValueError("TorchDataSampler: size() of the data set is nullopt; give the number of samples");
  return static_cast<int64_t>(*size);
}

void TorchDataSampler::refuse_archive() {
  throw Error(
      "TorchDataSampler has no state for an archive: save state_dict() of the DistributedSampler behind it");
}

std::optional<std::vector<size_t>> TorchDataSampler::next(size_t batch_size) {
  if (batch_size == 0) {
    throw ValueError(
        "TorchDataSampler: the loader's batch_size is 0; expected at least 1 (a whole batch divided by more ranks than it has "
        "samples gives 0)");
  }
  asked_ = batch_size;
  const size_t count = std::min(batch_size, indices_.size() - given_);
  if (indices_.empty()) detail::PositionOf::of(*sampler_)->pass_ended(pass_, static_cast<int64_t>(asked_));
  if (count == 0) return std::nullopt;
  const auto begin = indices_.begin() + static_cast<ptrdiff_t>(given_);
  given_ += count;
  return std::vector<size_t>(begin, begin + static_cast<ptrdiff_t>(count));
}

std::vector<int64_t> random_indices(int64_t dataset_size, uint64_t seed) {
  if (dataset_size < 0) throw ValueError(fmt::format("a dataset cannot have {} samples", dataset_size));
  const auto permutation =
      at::randperm(dataset_size, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kLong));
  const auto* data = permutation.const_data_ptr<int64_t>();
  return {data, data + dataset_size};
}

std::vector<int64_t> weighted_random_indices(const std::vector<double>& weights, int64_t num_samples,
                                             bool replacement, uint64_t seed) {
  constexpr size_t kMostWeights = 1 << 24;  // at::multinomial's
  if (num_samples < 1) {
    throw ValueError(fmt::format("weighted sampling of {} samples; expected at least one", num_samples));
  }
  if (weights.empty() || weights.size() > kMostWeights) {
    throw ValueError(
        fmt::format("weighted sampling with {} weights; expected 1 to {}", weights.size(), kMostWeights));
  }
  int64_t possible = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= 0) || std::isinf(weights[i])) {
      throw ValueError(fmt::format("the weight of sample {} is {}; expected 0 or more", i, weights[i]));
    }
    possible += weights[i] > 0 ? 1 : 0;
  }
  if (possible < (replacement ? 1 : num_samples)) {
    throw ValueError(fmt::format("{} of {} weights are above 0, which is too few to draw {} samples{}",
                                 possible, weights.size(), num_samples,
                                 replacement ? "" : " without replacement"));
  }
  const at::Tensor drawn = at::multinomial(at::tensor(weights, at::kDouble), num_samples, replacement,
                                           at::detail::createCPUGenerator(seed));
  const auto* data = drawn.const_data_ptr<int64_t>();
  return {data, data + num_samples};
}

std::vector<int64_t> evaluation_indices(int64_t dataset_size, int num_replicas, int rank) {
  checked(dataset_size, num_replicas, rank);
  std::vector<int64_t> mine;
  for (int64_t i = rank; i < dataset_size; i += num_replicas) mine.push_back(i);
  return mine;
}

}  // namespace lockstep
