#include "lockstep/data/train_sampler.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lockstep
