#include "lockstep/data/train_sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/random_key.h"
#include "lockstep/data/batch_shard.h"
#include "lockstep/data/length_grouping.h"
#include "lockstep/data/position_of.h"
#include "lockstep/data/sampler.h"

namespace lockstep {
namespace {

// The state of a process's global generator when the Trainer's sampler draws from it: torch's DataLoader has
// drawn the seed of its workers by then.
at::Generator generator_after_data_loader(uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  at::empty({}, at::TensorOptions(at::kLong)).random_(generator);
  return generator;
}

void check(int64_t dataset_size, const TrainSamplerOptions& options, const std::vector<int64_t>& lengths) {
  if (dataset_size < 1) {
    throw ValueError(fmt::format("the dataset has {} samples; expected at least one", dataset_size));
  }
  if (options.gradient_accumulation_steps < 1) {
    throw ValueError(fmt::format("gradient_accumulation_steps is {}; expected at least 1",
                                 options.gradient_accumulation_steps));
  }
  if (options.strategy == TrainSamplingStrategy::group_by_length &&
      static_cast<int64_t>(lengths.size()) != dataset_size) {
    throw ValueError(
        fmt::format("group_by_length needs the length of every sample: {} lengths for {} samples",
                    lengths.size(), dataset_size));
  }
  batch_shard({}, options.batch_size, options.num_replicas, options.rank);  // checks what is left
}

int64_t hash_of(const std::vector<int64_t>& lengths) {
  uint64_t hash = lengths.size();
  for (const int64_t length : lengths) hash = random_key({hash, static_cast<uint64_t>(length)});
  return static_cast<int64_t>(hash);
}

detail::SampleOrder order_of(int64_t dataset_size, const TrainSamplerOptions& options,
                             const std::vector<int64_t>& lengths) {
  check(dataset_size, options, lengths);
  const int64_t round = options.num_replicas * options.batch_size;
  int64_t of_pass = dataset_size;  // as batch_shard() has it
  if (options.drop_last) {
    of_pass = dataset_size / round * round;
  } else if (options.num_replicas > 1) {
    of_pass = (dataset_size + round - 1) / round * round;
  }
  detail::SampleOrder order{
      .sampler = "TrainSampler",
      .dataset_size = dataset_size,
      .seed = options.seed,
      .of_pass = of_pass,
      .at_a_time = round,
      .num_replicas = options.num_replicas,
      .choices = {{"strategy", name_of(options.strategy)}, {"drop_last", options.drop_last}}};
  if (options.strategy == TrainSamplingStrategy::group_by_length) {
    order.choices["batch_size x gradient_accumulation_steps"] =
        options.batch_size * options.gradient_accumulation_steps;
    order.choices["hash of the lengths"] = hash_of(lengths);
  }
  return order;
}

}  // namespace

TrainSamplingStrategy parse_train_sampling_strategy(const std::string& flag, const std::string& text) {
  if (text == "random") return TrainSamplingStrategy::random;
  if (text == "sequential") return TrainSamplingStrategy::sequential;
  if (text == "group_by_length") return TrainSamplingStrategy::group_by_length;
  throw ValueError(fmt::format("{} is {}; it must be random, sequential or group_by_length", flag, text));
}

const char* name_of(TrainSamplingStrategy strategy) {
  switch (strategy) {
    case TrainSamplingStrategy::random:
      return "random";
    case TrainSamplingStrategy::sequential:
      return "sequential";
    case TrainSamplingStrategy::group_by_length:
      return "group_by_length";
  }
  return "unknown";
}

TrainSampler::TrainSampler(int64_t dataset_size, TrainSamplerOptions options, std::vector<int64_t> lengths)
    : dataset_size_(dataset_size),
      options_(options),
      lengths_(std::move(lengths)),
      position_(order_of(dataset_size, options, lengths_)) {}

std::vector<int64_t> TrainSampler::indices() const {
  const uint64_t seed = options_.seed + static_cast<uint64_t>(position_.epoch());
  std::vector<int64_t> order;
  switch (options_.strategy) {
    case TrainSamplingStrategy::random:
      order = random_indices(dataset_size_, seed);
      break;
    case TrainSamplingStrategy::sequential:
      order.resize(static_cast<size_t>(dataset_size_));
      std::iota(order.begin(), order.end(), 0);
      break;
    case TrainSamplingStrategy::group_by_length:
      order = length_grouped_indices(lengths_, options_.batch_size * options_.gradient_accumulation_steps,
                                     generator_after_data_loader(seed));
      break;
  }
  return position_.rest_of(
      batch_shard(order, options_.batch_size, options_.num_replicas, options_.rank, options_.drop_last));
}

const detail::EpochPosition* detail::PositionOf::of(const TrainSampler& sampler) {
  return &sampler.position_;
}

}  // namespace lockstep
