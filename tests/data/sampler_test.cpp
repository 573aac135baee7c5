#include "lockstep/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Indices = std::vector<int64_t>;

TEST(DistributedSampler, PadsByRepetitionWhenRanksOutnumberSamples) {
  const DistributedSampler sampler(2, {.num_replicas = 5, .rank = 4, .shuffle = false});
  EXPECT_EQ(sampler.indices(), Indices{0});
  EXPECT_EQ(sampler.num_samples(), 1);
}

TEST(DistributedSampler, EpochsDifferAndRepeat) {
  DistributedSampler sampler(100, {.num_replicas = 2, .seed = 3});
  const auto first = sampler.indices();
  sampler.set_epoch(1);
  EXPECT_NE(sampler.indices(), first);
  sampler.set_epoch(0);
  EXPECT_EQ(sampler.indices(), first);
}

TEST(DistributedSampler, RefusesWhatCannotWork) {
  EXPECT_THROW(DistributedSampler(0, {}), ValueError);
  EXPECT_THROW(DistributedSampler(8, {.num_replicas = 0}), ValueError);
  EXPECT_THROW(DistributedSampler(8, {.num_replicas = 2, .rank = 2}), ValueError);
  EXPECT_THROW(DistributedSampler(8, {.num_replicas = 2, .rank = -1}), ValueError);
  EXPECT_THROW(random_indices(-1, 0), ValueError);
  EXPECT_THROW(length_grouped_indices({}, 8, 0), ValueError);
  EXPECT_THROW(length_grouped_indices({1, 2}, 0, 0), ValueError);
}

TEST(EvaluationIndices, TakingOneFromEachRankInTurnRestoresTheOrder) {
  for (const int64_t size : {1, 2, 7, 8, 100}) {
    for (const int replicas : {1, 2, 3, 8}) {
      std::vector<Indices> ranks;
      for (int rank = 0; rank < replicas; ++rank) ranks.push_back(evaluation_indices(size, replicas, rank));
      size_t given = 0;
      for (int64_t i = 0; i < size; ++i) {
        const auto& rank = ranks[static_cast<size_t>(i % replicas)];
        ASSERT_EQ(rank.at(static_cast<size_t>(i / replicas)), i);
        ++given;
      }
      size_t held = 0;
      for (const auto& rank : ranks) held += rank.size();
      EXPECT_EQ(held, given) << size << " samples on " << replicas;
    }
  }
  EXPECT_THROW(evaluation_indices(0, 1, 0), ValueError);
  EXPECT_THROW(evaluation_indices(4, 2, 2), ValueError);
}

}  // namespace
}  // namespace lockstep
