#include <gtest/gtest.h>

#include <set>

#include "lockstep/optim/zero_partition.h"

namespace lockstep::detail {
namespace {

using Partition = std::vector<std::vector<std::vector<size_t>>>;

TEST(ZeroPartition, GivesTheLargestToTheRankThatHasLeast) {
  // Group by group: 0: 5 -> rank 0, 4 -> rank 1, 3 (first) -> rank 1, 3 (second) -> rank 0; then 1, 1.
  EXPECT_EQ(partition_greedily({{3, 5, 3, 4}, {1, 1}}, 2), (Partition{{{1, 2}, {1}}, {{3, 0}, {0}}}));
}

TEST(ZeroPartition, LeavesRanksEmptyWhereThereIsTooLittle) {
  EXPECT_EQ(partition_greedily({{2}}, 3), (Partition{{{0}}, {{}}, {{}}}));
}

TEST(ZeroPartition, SlicesCoverEveryElementOnceInWholeChunks) {
  constexpr int64_t kChunk = 8;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const int64_t elements : {0, 1, 7, 8, 9, 24, 25, 1000}) {
      for (size_t index = 0; index < 5; ++index) {
        std::set<int64_t> seen;
        for (int rank = 0; rank < ranks; ++rank) {
          const ElementRange range = slice_of_parameter(elements, kChunk, index, rank, ranks);
          EXPECT_LE(range.begin, range.end);
          if (range.begin < range.end) {
            EXPECT_EQ(range.begin % kChunk, 0);
            EXPECT_TRUE(range.end % kChunk == 0 || range.end == elements);
          }
          for (int64_t i = range.begin; i < range.end; ++i) EXPECT_TRUE(seen.insert(i).second);
        }
        EXPECT_EQ(static_cast<int64_t>(seen.size()), elements);
      }
    }
  }
}

TEST(ZeroPartition, SmallParametersGoRound) {
  std::set<int> owners;
  for (size_t index = 0; index < 3; ++index) {
    for (int rank = 0; rank < 3; ++rank) {
      const ElementRange range = slice_of_parameter(5, 8, index, rank, 3);
      if (range.begin < range.end) owners.insert(rank);
    }
  }
  EXPECT_EQ(owners.size(), 3u);
}

}  // namespace
}  // namespace lockstep::detail
