#include "lockstep/data/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/data/numpy_random.h"
#include "lockstep/data/sampler.h"

namespace lockstep {
namespace {

std::string text_of(SplitSize size) {
  return std::visit([](auto value) { return fmt::format("{}", value); }, size);
}

int64_t test_samples(int64_t dataset_size, SplitSize test_size) {
  if (const auto* count = std::get_if<int64_t>(&test_size)) {
    if (*count > 0 && *count < dataset_size) return *count;
  } else if (const double share = std::get<double>(test_size); share > 0 && share < 1) {
    const auto samples = static_cast<int64_t>(std::ceil(share * static_cast<double>(dataset_size)));
    if (samples < dataset_size) return samples;
    throw ValueError(
        fmt::format("test_size={} of {} samples leaves none to train on; choose a smaller test_size", share,
                    dataset_size));
  }
  throw ValueError(fmt::format(
      "test_size={}; expected a whole number from 1 to {} (there are {} samples) or a share between "
      "0 and 1",
      text_of(test_size), dataset_size - 1, dataset_size));
}

// The parts' sizes of shares.
std::vector<int64_t> sizes_of_shares(int64_t dataset_size, const std::vector<SplitSize>& lengths) {
  std::vector<int64_t> sizes;
  double sum = 0, error = 0;  // Neumaier's summation, as Python's sum()
  int64_t left = dataset_size;
  for (const SplitSize& length : lengths) {
    const double share = std::get<double>(length);
    if (!(share >= 0 && share <= 1)) {
      throw ValueError(fmt::format("random_split: the share {} is not between 0 and 1", share));
    }
    const double next = sum + share;
    error += sum >= share ? (sum - next) + share : (share - next) + sum;
    sum = next;
    sizes.push_back(static_cast<int64_t>(std::floor(static_cast<double>(dataset_size) * share)));
    left -= sizes.back();
  }
  sum += error;
  if (sum > 1 || std::abs(sum - 1) > 1e-9) {
    throw ValueError(fmt::format("random_split: the shares sum to {}; expected 1", sum));
  }
  for (size_t part = 0; left > 0; --left, part = (part + 1) % sizes.size()) ++sizes[part];
  return sizes;
}

std::vector<int64_t> sizes_of_numbers(int64_t dataset_size, const std::vector<SplitSize>& lengths) {
  std::vector<int64_t> sizes;
  int64_t sum = 0;
  for (const SplitSize& length : lengths) {
    const int64_t size = std::get<int64_t>(length);
    if (size < 0 || size > dataset_size) {
      throw ValueError(fmt::format("random_split: a part of {} samples; there are {}", size, dataset_size));
    }
    sizes.push_back(size);
    sum += size;
  }
  if (sum != dataset_size) {
    throw ValueError(fmt::format("random_split: the lengths sum to {}; expected the dataset's {} samples",
                                 sum, dataset_size));
  }
  return sizes;
}

}  // namespace

TrainTestSplit train_test_split(int64_t dataset_size, SplitSize test_size, uint64_t seed) {
  if (dataset_size == 0) return {};
  const std::vector<int64_t> order = shuffled_indices(dataset_size, seed);
  const auto middle = order.begin() + test_samples(dataset_size, test_size);
  return {.train = {middle, order.end()}, .test = {order.begin(), middle}};
}

std::vector<int64_t> shuffled_indices(int64_t dataset_size, uint64_t seed) {
  if (dataset_size < 0 || dataset_size > int64_t{1} << 32) {
    throw ValueError(
        fmt::format("a dataset of {} samples cannot be shuffled; expected 0 to 2^32", dataset_size));
  }
  return data::NumpyGenerator(seed).permutation(dataset_size);
}

std::vector<std::vector<int64_t>> random_split(int64_t dataset_size, const std::vector<SplitSize>& lengths,
                                               uint64_t seed) {
  const auto is_share = [](const SplitSize& length) { return std::holds_alternative<double>(length); };
  const bool by_shares = !lengths.empty() && is_share(lengths.front());
  if (!std::all_of(lengths.begin(), lengths.end(), [&](const auto& l) { return is_share(l) == by_shares; })) {
    throw ValueError("random_split: the lengths are shares and whole numbers; expected all of one kind");
  }
  const auto sizes =
      by_shares ? sizes_of_shares(dataset_size, lengths) : sizes_of_numbers(dataset_size, lengths);
  const std::vector<int64_t> order = random_indices(dataset_size, seed);
  std::vector<std::vector<int64_t>> parts;
  auto at = order.begin();
  for (const int64_t size : sizes) {
    parts.emplace_back(at, at + size);
    at += size;
  }
  return parts;
}

}  // namespace lockstep
