#include "lockstep/data/data_loader.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/data/sampler.h"

namespace lockstep {
namespace {

using Indices = std::vector<int64_t>;

Indices first(int64_t size) {
  Indices indices(static_cast<size_t>(size));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

/// Batches of the samples' own numbers; `on_batch` is called for each, by the thread that makes it.
Dataset numbers(std::function<void(const Indices&)> on_batch = {}) {
  return {.size = 1000, .collate = [on_batch = std::move(on_batch)](const Indices& indices) {
            if (on_batch) on_batch(indices);
            return Batch{{"number", at::tensor(indices, at::kLong)}};
          }};
}

Indices numbers_in(const Batch& batch) {
  const auto* const begin = batch["number"].const_data_ptr<int64_t>();
  return {begin, begin + batch.size()};
}

/// The numbers in the next batch, none after the last.
Indices next_of(DataLoader& loader) {
  const auto batch = loader.next();
  return batch ? numbers_in(*batch) : Indices{};
}

class DataLoaderWithWorkers : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, DataLoaderWithWorkers, testing::Values(0, 1, 2, 5));

TEST_P(DataLoaderWithWorkers, GivesEveryBatchInOrderHoweverLongEachTakes) {
  const auto sleep = [](const Indices& indices) {
    std::this_thread::sleep_for(std::chrono::microseconds(indices[0] * 7919 % 1000));
  };
  DataLoader loader(numbers(sleep), first(101), {.batch_size = 4, .num_workers = GetParam()});
  EXPECT_EQ(loader.num_batches(), 26);
  Indices seen;
  int64_t batches = 0;
  while (const auto batch = loader.next()) {
    EXPECT_EQ(batch->size(), batches == 25 ? 1 : 4);
    const Indices numbers = numbers_in(*batch);
    seen.insert(seen.end(), numbers.begin(), numbers.end());
    ++batches;
  }
  EXPECT_EQ(batches, 26);
  EXPECT_EQ(seen, first(101));
  EXPECT_FALSE(loader.next());
}

std::vector<Indices> batches_of(DataLoader& loader) {
  std::vector<Indices> batches;
  for (const Batch& batch : loader) batches.push_back(numbers_in(batch));
  return batches;
}

/// What a DistributedSampler does, in an order that can be read here.
struct Countdown {
  Indices indices() const { return {epoch + 4, epoch + 3, epoch + 2, epoch + 1, epoch}; }
  int64_t epoch = 0;
};

TEST_P(DataLoaderWithWorkers, EachLoopIsAPassWithTheSamplersEpoch) {
  Countdown sampler;
  DataLoader loader(numbers(), sampler, {.batch_size = 2, .num_workers = GetParam()});
  for (const int64_t epoch : {0, 10, 10, 20}) {
    sampler.epoch = epoch;
    EXPECT_EQ(batches_of(loader),
              (std::vector<Indices>{{epoch + 4, epoch + 3}, {epoch + 2, epoch + 1}, {epoch}}));
  }
  for (const Batch& batch : loader) {
    EXPECT_EQ(numbers_in(batch), (Indices{24, 23}));
    break;
  }
  sampler.epoch = 30;
  EXPECT_EQ(batches_of(loader).front(), (Indices{34, 33}));  // not the rest of the pass before
  const StateDict in_the_middle = {{}, {{"samples", int64_t{2}}}};
  sampler.epoch = 40;
  loader.load_state_dict(in_the_middle);
  EXPECT_EQ(batches_of(loader), (std::vector<Indices>{{42, 41}, {40}}));  // of the sampler's epoch of now
  DataLoader fresh(numbers(), sampler, {.batch_size = 2, .num_workers = GetParam()});
  sampler.epoch = 50;
  fresh.load_state_dict(in_the_middle);
  EXPECT_EQ(batches_of(fresh), (std::vector<Indices>{{52, 51}, {50}}));
  // The loop names the epoch after the load.
  fresh.load_state_dict(in_the_middle);
  sampler.epoch = 60;
  EXPECT_EQ(batches_of(fresh), (std::vector<Indices>{{62, 61}, {60}}));
  fresh.load_state_dict(in_the_middle);
  sampler.epoch = 70;
  EXPECT_EQ(next_of(fresh), (Indices{72, 71}));
  EXPECT_EQ(next_of(fresh), (Indices{70}));
  DataLoader owner(numbers(), Countdown{7}, {.batch_size = 5, .num_workers = GetParam()});
  EXPECT_EQ(batches_of(owner), (std::vector<Indices>{{11, 10, 9, 8, 7}}));
  DataLoader moved = std::move(owner);
  EXPECT_EQ(batches_of(moved), (std::vector<Indices>{{11, 10, 9, 8, 7}}));
}

TEST_P(DataLoaderWithWorkers, ALoopGoesOnBehindNextAndTheOneAfterItBeginsAnew) {
  DataLoader loader(numbers(), {7, 5, 3, 1, 9}, {.batch_size = 2, .num_workers = GetParam()});
  EXPECT_EQ(next_of(loader), (Indices{7, 5}));
  std::vector<Indices> seen;
  for (Batch& batch : loader) {
    seen.push_back(numbers_in(batch));
    EXPECT_EQ(loader.samples(), seen.back());
  }
  EXPECT_EQ(seen, (std::vector<Indices>{{3, 1}, {9}}));
  EXPECT_FALSE(loader.next());
  EXPECT_EQ(batches_of(loader), (std::vector<Indices>{{7, 5}, {3, 1}, {9}}));
  DataLoader by_hand(numbers(), {7, 5, 3}, {.batch_size = 2, .num_workers = GetParam()});
  while (by_hand.next()) continue;
  EXPECT_EQ(batches_of(by_hand), (std::vector<Indices>{{7, 5}, {3}}));
  // A state that does not fit leaves the loader where it is.
  Countdown sampler;
  DataLoader kept(numbers(), sampler, {.batch_size = 2, .num_workers = GetParam()});
  EXPECT_EQ(next_of(kept), (Indices{4, 3}));
  sampler.epoch = 10;
  EXPECT_THROW(kept.load_state_dict({{}, {{"samples", int64_t{3}}}}), ValueError);
  EXPECT_EQ(next_of(kept), (Indices{2, 1}));
  // A checkpoint at the end of a pass has nothing left of it.
  by_hand.load_state_dict({{}, {{"samples", int64_t{4}}}});
  EXPECT_TRUE(batches_of(by_hand).empty());
  EXPECT_EQ(batches_of(by_hand), (std::vector<Indices>{{7, 5}, {3}}));
}

TEST_P(DataLoaderWithWorkers, RefusesThePlaceInAPassOfOtherRanks) {
  const DataLoaderOptions options{.batch_size = 8, .num_workers = GetParam()};
  DataLoader of_two(numbers(), first(160), options);
  for (int i = 0; i < 10; ++i) of_two.next();
  DataLoader of_four(numbers(), first(80), options);
  EXPECT_THROW(of_four.load_state_dict(of_two.state_dict()), ValueError);
  EXPECT_EQ(next_of(of_four), first(8));
  DataLoader same(numbers(), first(159), options);  // a rank that has one less
  same.load_state_dict(of_two.state_dict());
  EXPECT_EQ(next_of(same).front(), 80);
}

TEST_P(DataLoaderWithWorkers, RefusesThePlaceOfTheLoaderAndThatOfTheSampler) {
  const auto make = [] { return DistributedSampler(12, {.num_replicas = 1, .rank = 0, .shuffle = false}); };
  const DataLoaderOptions options{.batch_size = 2, .num_workers = GetParam()};
  DistributedSampler sampler = make(), after = make(), before = make();
  DataLoader loader(numbers(), sampler, options);
  loader.next();
  loader.next();
  sampler.advance(4);
  DataLoader then_sampler(numbers(), after, options);
  then_sampler.load_state_dict(loader.state_dict());
  after.load_state_dict(sampler.state_dict());
  for (int i = 0; i < 2; ++i) EXPECT_THROW(then_sampler.next(), ValueError) << "each time";
  before.load_state_dict(sampler.state_dict());
  DataLoader then_loader(numbers(), before, options);
  EXPECT_THROW(then_loader.load_state_dict(loader.state_dict()), ValueError);
  EXPECT_EQ(next_of(then_loader), (Indices{4, 5})) << "the sampler's place alone";
}

TEST(BatchSource, RanksThatReadTheirOwnBatchesStayAsMany) {
  const IterableDataset nothing{.next = [](int64_t) { return std::function<Batch()>(); }};
  const auto make = [&](int ranks_apart) {
    return std::make_unique<detail::ShardedBatches>(nothing, 4, 1, 0, ranks_apart);
  };
  const StateDict of_two = make(2)->save(3), shared = make(0)->save(3);
  EXPECT_EQ(make(2)->place_of(of_two), 3);
  EXPECT_THROW(make(4)->place_of(of_two), ValueError);
  EXPECT_THROW(make(0)->place_of(of_two), ValueError);
  EXPECT_EQ(make(0)->place_of(shared), 3);
  EXPECT_THROW(make(2)->place_of(shared), ValueError);
}

TEST_P(DataLoaderWithWorkers, TellsTheSamplesOfTheLastBatch) {
  const auto refuse = [](const Indices& indices) {
    if (indices[0] == 3) throw std::runtime_error("sample 3 is bad");
  };
  DataLoader loader(numbers(refuse), {7, 5, 3, 1, 9}, {.batch_size = 2, .num_workers = GetParam()});
  EXPECT_TRUE(loader.samples().empty());
  loader.next();
  EXPECT_EQ(loader.samples(), (Indices{7, 5}));
  EXPECT_THROW(loader.next(), std::runtime_error);
  EXPECT_EQ(loader.samples(), (Indices{3, 1}));  // which batch was bad
  loader.next();
  EXPECT_EQ(loader.samples(), Indices{9});
  EXPECT_FALSE(loader.next());
  EXPECT_EQ(loader.samples(), Indices{9});
}

TEST_P(DataLoaderWithWorkers, DropLastLeavesOutTheShortBatch) {
  DataLoader loader(numbers(), first(10), {.batch_size = 4, .drop_last = true, .num_workers = GetParam()});
  EXPECT_EQ(loader.num_batches(), 2);
  EXPECT_EQ(next_of(loader), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(next_of(loader), (Indices{4, 5, 6, 7}));
  EXPECT_FALSE(loader.next());
  EXPECT_EQ(loader.samples(), (Indices{4, 5, 6, 7}));
}

TEST_P(DataLoaderWithWorkers, AnExceptionComesOutAtItsBatch) {
  const auto refuse = [](const Indices& indices) {
    if (indices[0] == 2) throw std::runtime_error("sample 2 is bad");
  };
  DataLoader loader(numbers(refuse), first(6), {.batch_size = 1, .num_workers = GetParam()});
  EXPECT_EQ(next_of(loader), Indices{0});
  EXPECT_EQ(next_of(loader), Indices{1});
  try {
    loader.next();
    FAIL() << "no exception";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "sample 2 is bad");
  }
  EXPECT_EQ(next_of(loader), Indices{3});
}

TEST_P(DataLoaderWithWorkers, NoIndicesNoBatches) {
  DataLoader loader(numbers(), {}, {.num_workers = GetParam()});
  EXPECT_EQ(loader.num_batches(), 0);
  EXPECT_FALSE(loader.next());
  EXPECT_TRUE(loader.samples().empty());
}

TEST_P(DataLoaderWithWorkers, ABatchMayBeLargerThanAnyDataset) {
  DataLoader loader(numbers(), first(8),
                    {.batch_size = std::numeric_limits<int64_t>::max(), .num_workers = GetParam()});
  EXPECT_EQ(loader.num_batches(), 1);
  EXPECT_EQ(next_of(loader), first(8));
  EXPECT_FALSE(loader.next());
}

TEST_P(DataLoaderWithWorkers, GoesOnWhenItIsMoved) {
  static_assert(!std::is_copy_constructible_v<DataLoader>);
  DataLoader loader(numbers(), first(6), {.batch_size = 2, .num_workers = GetParam()});
  loader.next();
  DataLoader moved = std::move(loader);
  EXPECT_EQ(next_of(moved), (Indices{2, 3}));
  loader = std::move(moved);
  EXPECT_EQ(next_of(loader), (Indices{4, 5}));
}

TEST_P(DataLoaderWithWorkers, OutlivesTheDataset) {
  auto dataset = std::make_unique<Dataset>(numbers());
  DataLoader loader(*dataset, first(3), {.batch_size = 1, .num_workers = GetParam()});
  dataset.reset();
  EXPECT_EQ(next_of(loader), Indices{0});
  EXPECT_EQ(next_of(loader), Indices{1});
}

TEST_P(DataLoaderWithWorkers, CanBeDestroyedInTheMiddle) {
  std::atomic<int> running = 0;
  const auto run = [&](const Indices&) {
    ++running;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --running;
  };
  {
    DataLoader loader(numbers(run), first(1000), {.batch_size = 1, .num_workers = GetParam()});
    EXPECT_EQ(next_of(loader), Indices{0});
  }
  EXPECT_EQ(running, 0);
}

TEST(DataLoader, PrefetchIsBounded) {
  std::atomic<int> made = 0;
  DataLoader loader(numbers([&](const Indices&) { ++made; }), first(100),
                    {.batch_size = 1, .num_workers = 2, .prefetch_factor = 3});
  for (int taken = 0; taken < 10; ++taken) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_LE(made, taken + 6);
    EXPECT_EQ(next_of(loader), Indices{taken});
  }
}

TEST(DataLoader, WorkersWorkAtTheSameTime) {
  std::latch both(2);  // passes only when two calls of collate are under way at once
  DataLoader loader(numbers([&](const Indices&) { both.arrive_and_wait(); }), first(2),
                    {.batch_size = 1, .num_workers = 2});
  EXPECT_EQ(next_of(loader), Indices{0});
  EXPECT_EQ(next_of(loader), Indices{1});
}

TEST(DataLoader, RefusesWhatCannotWork) {
  EXPECT_THROW(DataLoader(numbers(), first(3), {.batch_size = 0}), ValueError);
  EXPECT_THROW(DataLoader(numbers(), first(3), {.num_workers = -1}), ValueError);
  EXPECT_THROW(DataLoader(numbers(), first(3), {.prefetch_factor = 0}), ValueError);
  EXPECT_THROW(DataLoader(Dataset{.size = 3}, first(3)), ValueError);
}

TEST_P(DataLoaderWithWorkers, GoesOnWhereItsStateWas) {
  const DataLoaderOptions options{.batch_size = 4, .num_workers = GetParam()};
  for (const int given : {0, 1, 3, 6}) {
    DataLoader first_loader(numbers(), first(22), options), second(numbers(), first(22), options);
    for (int i = 0; i < given; ++i) first_loader.next();
    const StateDict state = first_loader.state_dict();
    EXPECT_EQ(state.get<int64_t>("test", "samples"), given * 4);
    second.next();  // batches are being made ahead
    second.load_state_dict(state);
    for (int i = given; i < 6; ++i) EXPECT_EQ(next_of(second), next_of(first_loader)) << given;
    EXPECT_FALSE(second.next());
    second.load_state_dict({{}, {{"samples", int64_t{20}}}});
    EXPECT_EQ(next_of(second), (Indices{20, 21}));
  }
  DataLoader loader(numbers(), first(22), options);
  EXPECT_THROW(loader.load_state_dict({{}, {{"samples", int64_t{6}}}}), ValueError);
  EXPECT_THROW(loader.load_state_dict({{}, {{"samples", int64_t{28}}}}), ValueError);
  EXPECT_EQ(next_of(loader), first(4));
}

}  // namespace
}  // namespace lockstep
