#include "lockstep/data/train_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(TrainSampler, StrategiesByName) {
  EXPECT_EQ(parse_train_sampling_strategy("order", "group_by_length"),
            TrainSamplingStrategy::group_by_length);
  try {
    parse_train_sampling_strategy("--order", "shuffle");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "--order is shuffle; it must be random, sequential or group_by_length");
  }
}

TEST(TrainSampler, RefusesWhatCannotWork) {
  EXPECT_THROW(TrainSampler(0, {}), ValueError);
  EXPECT_THROW(TrainSampler(8, {.batch_size = 0}), ValueError);
  EXPECT_THROW(TrainSampler(8, {.gradient_accumulation_steps = 0}), ValueError);
  EXPECT_THROW(TrainSampler(8, {.num_replicas = 2, .rank = 2}), ValueError);
  EXPECT_THROW(TrainSampler(8, {.strategy = TrainSamplingStrategy::group_by_length}), ValueError);
  EXPECT_THROW(TrainSampler(3, {.strategy = TrainSamplingStrategy::group_by_length}, {1, 2}), ValueError);
}

TEST(TrainSampler, GoesOnInTheMiddleOfAnEpochWithAnyNumberOfRanks) {
  struct Division {
    int replicas;
    int64_t batch_size;
  };
  for (const Division before : {Division{1, 8}, Division{2, 4}, Division{4, 2}}) {
    for (const Division after : {Division{1, 4}, Division{2, 4}, Division{8, 1}}) {
      std::vector<int64_t> seen;
      StateDict state;
      for (int rank = 0; rank < before.replicas; ++rank) {
        TrainSampler sampler(
            64, {.batch_size = before.batch_size, .num_replicas = before.replicas, .rank = rank});
        sampler.set_epoch(1);
        const auto all = sampler.indices();
        const int64_t used = 3 * before.batch_size;
        for (int i = 0; i < 3; ++i) sampler.advance(before.batch_size);
        seen.insert(seen.end(), all.begin(), all.begin() + used);
        EXPECT_EQ(sampler.indices(), std::vector<int64_t>(all.begin() + used, all.end()));
        state = sampler.state_dict();
      }
      for (int rank = 0; rank < after.replicas; ++rank) {
        TrainSampler sampler(64,
                             {.batch_size = after.batch_size, .num_replicas = after.replicas, .rank = rank});
        sampler.load_state_dict(state);
        sampler.set_epoch(1);
        const auto rest = sampler.indices();
        seen.insert(seen.end(), rest.begin(), rest.end());
      }
      std::sort(seen.begin(), seen.end());
      ASSERT_EQ(seen.size(), 64);
      for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
    }
  }
}

TEST(TrainSampler, AnEpochThatIsOverIsOverForAnyDivision) {
  for (const auto& [replicas, batch] : {std::pair{1, 8}, {2, 1}, {3, 4}}) {
    TrainSampler before(20, {.batch_size = batch, .num_replicas = replicas});
    const auto whole = before.indices();
    before.advance(static_cast<int64_t>(whole.size()));
    EXPECT_EQ(before.indices(), whole) << "of the next pass";
    for (const auto& [ranks, size] : {std::pair{1, 4}, {2, 8}, {4, 8}, {3, 2}}) {
      TrainSampler after(20, {.batch_size = size, .num_replicas = ranks});
      after.load_state_dict(before.state_dict());
      after.set_epoch(0);
      EXPECT_TRUE(after.indices().empty()) << replicas << " " << ranks;
      after.set_epoch(1);
      EXPECT_FALSE(after.indices().empty());
    }
  }
  StateDict wrong = TrainSampler(20, {}).state_dict();
  wrong.scalars["samples"] = int64_t{-8};
  EXPECT_THROW(TrainSampler(20, {}).load_state_dict(wrong), ValueError);
}

/// The message of the error with which a sampler of `options` refuses `state`; empty if it takes it.
std::string refusal(const StateDict& state, const TrainSamplerOptions& options,
                    std::vector<int64_t> lengths) {
  TrainSampler sampler(static_cast<int64_t>(lengths.size()), options, lengths);
  try {
    sampler.load_state_dict(state);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "";
}

TEST(TrainSampler, RefusesTheStateOfAnotherOrderAndNamesBothValues) {
  using enum TrainSamplingStrategy;
  std::vector<int64_t> lengths(64);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<int64_t>(i * 7 % 13);
  const TrainSamplerOptions options{
      .strategy = group_by_length, .batch_size = 4, .gradient_accumulation_steps = 2};
  TrainSampler sampler(64, options, lengths);
  sampler.advance(8);
  const StateDict state = sampler.state_dict();
  EXPECT_EQ(refusal(state, options, lengths), "");
  const auto changed = [&](auto change) {
    TrainSamplerOptions other = options;
    change(other);
    return refusal(state, other, lengths);
  };
  const std::string begin = "TrainSampler::load_state_dict: the state is of ", end = "; their orders differ";
  EXPECT_EQ(changed([](auto& other) { other.strategy = random; }),
            begin + "strategy group_by_length, this sampler's is random" + end);
  EXPECT_EQ(changed([](auto& other) { other.drop_last = true; }),
            begin + "drop_last false, this sampler's is true" + end);
  EXPECT_EQ(changed([](auto& other) { other.seed = 7; }), begin + "seed 42, this sampler's is 7" + end);
  EXPECT_EQ(changed([](auto& other) { other.batch_size = 2; }),
            begin + "batch_size x gradient_accumulation_steps 8, this sampler's is 4" + end);
  // As many samples a step on another number of ranks.
  EXPECT_EQ(changed([](auto& other) { other.batch_size = 2, other.gradient_accumulation_steps = 4; }), "");
  auto others = lengths;
  std::swap(others[3], others[4]);
  EXPECT_NE(refusal(state, options, others).find("hash of the lengths"), std::string::npos);
  others.push_back(1);
  EXPECT_EQ(refusal(state, options, others), begin + "dataset_size 64, this sampler's is 65" + end);
  // The others' order depends neither on the batch size nor on the lengths.
  TrainSampler shuffled(64, {.batch_size = 4});
  shuffled.advance(8);
  EXPECT_EQ(refusal(shuffled.state_dict(), {.batch_size = 8}, lengths), "");
  StateDict older = shuffled.state_dict();
  older.scalars.erase("strategy");
  older.scalars.erase("drop_last");
  EXPECT_EQ(refusal(older, {.strategy = sequential}, lengths), "");
}

}  // namespace
}  // namespace lockstep
