#include "lockstep/data/train_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(TrainSampler, StrategiesByName) {
  EXPECT_EQ(parse_train_sampling_strategy("group_by_length"), TrainSamplingStrategy::group_by_length);
  try {
    parse_train_sampling_strategy("shuffle");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(),
                 "unknown train_sampling_strategy 'shuffle'; expected random, sequential or group_by_length");
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
    before.advance(static_cast<int64_t>(before.indices().size()));
    EXPECT_TRUE(before.indices().empty());
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

}  // namespace
}  // namespace lockstep
