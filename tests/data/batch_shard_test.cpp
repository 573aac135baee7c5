#include "lockstep/data/batch_shard.h"

#include <gtest/gtest.h>

#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Indices = std::vector<int64_t>;

Indices first_ids(int64_t size) {
  Indices indices(static_cast<size_t>(size));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

TEST(BatchShard, WholeBatchesGoRoundTheRanksAndTheBeginningFillsTheEnd) {
  EXPECT_EQ(batch_shard(first_ids(10), 2, 2, 0), (Indices{0, 1, 4, 5, 8, 9}));
  EXPECT_EQ(batch_shard(first_ids(10), 2, 2, 1), (Indices{2, 3, 6, 7, 0, 1}));
  EXPECT_EQ(batch_shard(first_ids(10), 2, 2, 1, /*drop_last=*/true), (Indices{2, 3, 6, 7}));
}

TEST(BatchShard, OneReplicaKeepsAShortLastBatch) {
  EXPECT_EQ(batch_shard(first_ids(5), 2, 1, 0), first_ids(5));
  EXPECT_EQ(batch_shard(first_ids(5), 2, 1, 0, /*drop_last=*/true), first_ids(4));
}

TEST(BatchShard, FewerSamplesThanRanksAreRepeated) {
  EXPECT_EQ(batch_shard(first_ids(2), 2, 3, 2), (Indices{0, 1}));
  EXPECT_TRUE(batch_shard({}, 2, 3, 2).empty());
}

TEST(BatchShard, RefusesWhatCannotWork) {
  EXPECT_THROW(batch_shard(first_ids(4), 0, 1, 0), ValueError);
  EXPECT_THROW(batch_shard(first_ids(4), 1, 0, 0), ValueError);
  EXPECT_THROW(batch_shard(first_ids(4), 1, 2, 2), ValueError);
}

}  // namespace
}  // namespace lockstep
