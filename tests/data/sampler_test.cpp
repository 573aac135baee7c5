#include "lockstep/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"

namespace lockstep {
namespace {

using Indices = std::vector<int64_t>;

TEST(DistributedSampler, PadsByRepetitionWhenRanksOutnumberSamples) {
  const DistributedSampler sampler(2, {.num_replicas = 5, .rank = 4, .shuffle = false});
  EXPECT_EQ(sampler.indices(), Indices{0});
  EXPECT_EQ(sampler.num_samples(), 1);
}

TEST(DistributedSampler, EpochsDifferAndRepeat) {
  DistributedSampler sampler(100, {.num_replicas = 2, .rank = 0, .seed = 3});
  const auto first = sampler.indices();
  sampler.set_epoch(1);
  EXPECT_NE(sampler.indices(), first);
  sampler.set_epoch(0);
  EXPECT_EQ(sampler.indices(), first);
}

TEST(DistributedSampler, RefusesWhatCannotWork) {
  EXPECT_THROW(DistributedSampler(0, {.num_replicas = 1, .rank = 0}), ValueError);
  EXPECT_THROW(DistributedSampler(8), Error);  // no job: every rank would be rank 0
  EXPECT_THROW(DistributedSampler(8, {.num_replicas = 2}), Error);
  EXPECT_THROW(DistributedSampler(8, {.rank = 0}), Error);
  EXPECT_THROW(DistributedSampler(8, {.num_replicas = 0, .rank = 0}), ValueError);
  EXPECT_THROW(DistributedSampler(8, {.num_replicas = 2, .rank = 2}), ValueError);
  EXPECT_THROW(DistributedSampler(8, {.num_replicas = 2, .rank = -1}), ValueError);
  EXPECT_THROW(random_indices(-1, 0), ValueError);
  EXPECT_THROW(length_grouped_indices({}, 8, 0), ValueError);
  EXPECT_THROW(length_grouped_indices({1, 2}, 0, 0), ValueError);
}

TEST(DistributedSampler, TakesRankAndSizeFromTheJob) {
  const World world = init();
  const Dataset dataset = {.size = 9};
  EXPECT_EQ(DistributedSampler(dataset, {.seed = 4}).indices(),
            DistributedSampler(9, {.num_replicas = world.size(), .rank = world.rank(), .seed = 4}).indices());
  EXPECT_EQ(DistributedSampler(9, {.num_replicas = 3}).indices(),
            DistributedSampler(9, {.num_replicas = 3, .rank = 0}).indices());
  world.destroy();
  EXPECT_FALSE(is_initialized());
  EXPECT_THROW(DistributedSampler{dataset}, Error);
}

TEST(TorchDataSampler, GivesLibTorchsLoaderTheSamplersEpochs) {
  DistributedSampler sampler(10, {.num_replicas = 2, .rank = 1, .seed = 5});
  TorchDataSampler batches(sampler);
  for (const int64_t epoch : {0, 1, 2}) {
    sampler.set_epoch(epoch);
    batches.reset();  // what begin() of LibTorch's loader calls
    Indices seen;
    std::vector<size_t> sizes;
    while (const auto batch = batches.next(2)) {
      sizes.push_back(batch->size());
      seen.insert(seen.end(), batch->begin(), batch->end());
    }
    EXPECT_EQ(seen, sampler.indices());
    EXPECT_EQ(sizes, (std::vector<size_t>{2, 2, 1}));
  }
  EXPECT_THROW(batches.reset(11), ValueError);
  batches.set_epoch(5);  // of the sampler that it refers to
  batches.reset();
  EXPECT_EQ(batches.next(5)->front(), static_cast<size_t>(sampler.indices().front()));
  EXPECT_NO_THROW(batches.reset(10));  // a ChunkDataset's number of chunks
  EXPECT_TRUE(batches.next(5));
  int archive = 0;
  EXPECT_THROW(batches.save(archive), Error);
  EXPECT_THROW(batches.load(archive), Error);
}

/// `64 / world.size()` on more than 64 ranks: an epoch of no batch would train nothing without a word.
TEST(TorchDataSampler, RefusesABatchOfNothing) {
  TorchDataSampler sampler(10, {.num_replicas = 1, .rank = 0});
  EXPECT_THROW(sampler.next(0), ValueError);
  EXPECT_EQ(sampler.next(10)->size(), 10);
  EXPECT_FALSE(sampler.next(1));
}

TEST(TorchDataSampler, CopiesHaveOneSampler) {
  struct Data {
    std::optional<size_t> size() const { return count; }
    std::optional<size_t> count;
  };
  const DistributedSamplerOptions options{.num_replicas = 2, .rank = 0, .seed = 3};
  TorchDataSampler sampler(Data{9}, options);
  TorchDataSampler in_a_loader = sampler;
  sampler.set_epoch(4);
  in_a_loader.reset();
  DistributedSampler alone(9, options);
  alone.set_epoch(4);
  const auto given = *in_a_loader.next(100);
  EXPECT_EQ(Indices(given.begin(), given.end()), alone.indices());
  in_a_loader.sampler().advance(2);
  EXPECT_EQ(sampler.sampler().indices().size(), 3);
  EXPECT_EQ(TorchDataSampler(9, options).sampler().dataset_size(), 9);
  EXPECT_THROW(TorchDataSampler(Data{std::nullopt}, options), ValueError);
  EXPECT_THROW(TorchDataSampler(Data{0}, options), ValueError);
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

TEST(DistributedSampler, GoesOnInTheMiddleOfAnEpochWithAnyNumberOfRanks) {
  constexpr int64_t size = 48;
  for (const int before : {1, 2, 4}) {
    for (const int after : {1, 2, 3, 4}) {
      std::vector<int64_t> seen;
      StateDict state;
      for (int rank = 0; rank < before; ++rank) {
        DistributedSampler sampler(size, {.num_replicas = before, .rank = rank, .seed = 7});
        sampler.set_epoch(2);
        const auto all = sampler.indices();
        const int64_t used = 24 / before;
        for (int64_t i = 0; i < used; i += 2) sampler.advance(2);
        seen.insert(seen.end(), all.begin(), all.begin() + used);
        EXPECT_EQ(sampler.indices(), std::vector<int64_t>(all.begin() + used, all.end()));
        state = sampler.state_dict();
      }
      for (int rank = 0; rank < after; ++rank) {
        DistributedSampler sampler(size, {.num_replicas = after, .rank = rank, .seed = 7});
        sampler.load_state_dict(state);
        sampler.set_epoch(2);  // as a loop over epochs does
        const auto rest = sampler.indices();
        EXPECT_EQ(rest.size(), 24 / after);
        seen.insert(seen.end(), rest.begin(), rest.end());
        sampler.set_epoch(3);
        EXPECT_EQ(sampler.indices().size(), static_cast<size_t>(size / after));
      }
      std::sort(seen.begin(), seen.end());
      for (int64_t i = 0; i < size; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i) << before << after;
    }
  }
}

TEST(DistributedSampler, AnEpochThatIsOverIsOverForAnyNumberOfRanks) {
  DistributedSampler before(10, {.num_replicas = 3, .rank = 0, .drop_last = true});
  before.advance(before.num_samples());
  for (const int ranks : {1, 2, 3, 4}) {
    DistributedSampler after(10, {.num_replicas = ranks, .rank = 0, .drop_last = true});
    ASSERT_NO_THROW(after.load_state_dict(before.state_dict())) << ranks;
    EXPECT_TRUE(after.indices().empty()) << ranks;
    after.set_epoch(1);
    EXPECT_EQ(after.indices().size(), static_cast<size_t>(10 / ranks));
  }
}

TEST(DistributedSampler, RefusesTheStateOfAnotherOrder) {
  DistributedSampler sampler(10, {.num_replicas = 2, .rank = 0, .seed = 1});
  sampler.advance(1);
  const StateDict state = sampler.state_dict();
  EXPECT_THROW(DistributedSampler(11, {.num_replicas = 1, .rank = 0, .seed = 1}).load_state_dict(state),
               ValueError);
  EXPECT_THROW(DistributedSampler(10, {.num_replicas = 1, .rank = 0, .seed = 2}).load_state_dict(state),
               ValueError);
  EXPECT_THROW(DistributedSampler(10, {.num_replicas = 3, .rank = 0, .seed = 1}).load_state_dict(state),
               ValueError);
  EXPECT_NO_THROW(DistributedSampler(10, {.num_replicas = 1, .rank = 0, .seed = 1}).load_state_dict(state));
  DistributedSampler in_order(10, {.num_replicas = 1, .rank = 0, .shuffle = false, .seed = 1});
  EXPECT_THROW(in_order.load_state_dict(state), ValueError);
  DistributedSampler drops(10, {.num_replicas = 1, .rank = 0, .seed = 1, .drop_last = true});
  EXPECT_THROW(drops.load_state_dict(state), ValueError);
  StateDict older = state;
  older.scalars.erase("shuffle");
  EXPECT_NO_THROW(in_order.load_state_dict(older));
  older.scalars["shuffle"] = int64_t{1};  // as it was saved for a while
  EXPECT_THROW(in_order.load_state_dict(older), ValueError);
  EXPECT_NO_THROW(DistributedSampler(10, {.num_replicas = 1, .rank = 0, .seed = 1}).load_state_dict(older));
}

}  // namespace
}  // namespace lockstep
