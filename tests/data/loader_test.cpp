#include "lockstep/data/loader.h"

#include <gtest/gtest.h>

#include <limits>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Indices = std::vector<int64_t>;

Indices first(int64_t size) {
  Indices indices(static_cast<size_t>(size));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

class LoaderWithWorkers : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, LoaderWithWorkers, testing::Values(0, 1, 2, 5));

TEST_P(LoaderWithWorkers, GivesEveryBatchInOrderHoweverLongEachTakes) {
  Loader<Indices> loader(first(101),
                         [](const Indices& indices) {
                           std::this_thread::sleep_for(std::chrono::microseconds(indices[0] * 7919 % 1000));
                           return indices;
                         },
                         {.batch_size = 4, .num_workers = GetParam()});
  EXPECT_EQ(loader.num_batches(), 26);
  Indices seen;
  int64_t batches = 0;
  while (auto batch = loader.next()) {
    EXPECT_EQ(batch->size(), batches == 25 ? 1u : 4u);
    seen.insert(seen.end(), batch->begin(), batch->end());
    ++batches;
  }
  EXPECT_EQ(batches, 26);
  EXPECT_EQ(seen, first(101));
  EXPECT_FALSE(loader.next());
}

TEST_P(LoaderWithWorkers, DropLastLeavesOutTheShortBatch) {
  Loader<size_t> loader(first(10), [](const Indices& indices) { return indices.size(); },
                        {.batch_size = 4, .drop_last = true, .num_workers = GetParam()});
  EXPECT_EQ(loader.num_batches(), 2);
  EXPECT_EQ(loader.next(), 4u);
  EXPECT_EQ(loader.next(), 4u);
  EXPECT_FALSE(loader.next());
}

TEST_P(LoaderWithWorkers, AnExceptionComesOutAtItsBatch) {
  Loader<int64_t> loader(first(6),
                         [](const Indices& indices) {
                           if (indices[0] == 2) throw std::runtime_error("sample 2 is bad");
                           return indices[0];
                         },
                         {.batch_size = 1, .num_workers = GetParam()});
  EXPECT_EQ(loader.next(), 0);
  EXPECT_EQ(loader.next(), 1);
  try {
    loader.next();
    FAIL() << "no exception";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "sample 2 is bad");
  }
  EXPECT_EQ(loader.next(), 3);
}

TEST_P(LoaderWithWorkers, NoIndicesNoBatches) {
  Loader<int> loader({}, [](const Indices&) { return 1; }, {.num_workers = GetParam()});
  EXPECT_EQ(loader.num_batches(), 0);
  EXPECT_FALSE(loader.next());
}

TEST_P(LoaderWithWorkers, ABatchMayBeLargerThanAnyDataset) {
  Loader<size_t> loader(std::vector<int64_t>(8),
                        [](const std::vector<int64_t>& indices) { return indices.size(); },
                        {.batch_size = std::numeric_limits<int64_t>::max(), .num_workers = GetParam()});
  EXPECT_EQ(loader.num_batches(), 1);
  EXPECT_EQ(loader.next(), 8U);
  EXPECT_FALSE(loader.next());
}

TEST_P(LoaderWithWorkers, BatchesThatOnlyMove) {
  Loader<std::unique_ptr<int64_t>> loader(
      first(3), [](const Indices& indices) { return std::make_unique<int64_t>(indices[0]); },
      {.batch_size = 2, .num_workers = GetParam()});
  EXPECT_EQ(**loader.next(), 0);
  EXPECT_EQ(**loader.next(), 2);
}

TEST_P(LoaderWithWorkers, CanBeDestroyedInTheMiddle) {
  std::atomic<int> running = 0;
  {
    Loader<int64_t> loader(first(1000),
                           [&](const Indices& indices) {
                             ++running;
                             std::this_thread::sleep_for(std::chrono::milliseconds(1));
                             --running;
                             return indices[0];
                           },
                           {.batch_size = 1, .num_workers = GetParam()});
    EXPECT_EQ(loader.next(), 0);
  }
  EXPECT_EQ(running, 0);
}

TEST(Loader, PrefetchIsBounded) {
  std::atomic<int> made = 0;
  Loader<int64_t> loader(first(100),
                         [&](const Indices& indices) {
                           ++made;
                           return indices[0];
                         },
                         {.batch_size = 1, .num_workers = 2, .prefetch_factor = 3});
  for (int taken = 0; taken < 10; ++taken) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_LE(made, taken + 6);
    EXPECT_EQ(loader.next(), taken);
  }
}

TEST(Loader, WorkersWorkAtTheSameTime) {
  std::latch both(2);  // passes only when two calls of collate are under way at once
  Loader<int64_t> loader(first(2),
                         [&](const Indices& indices) {
                           both.arrive_and_wait();
                           return indices[0];
                         },
                         {.batch_size = 1, .num_workers = 2});
  EXPECT_EQ(loader.next(), 0);
  EXPECT_EQ(loader.next(), 1);
}

TEST(Loader, RefusesWhatCannotWork) {
  const auto collate = [](const Indices&) { return 1; };
  EXPECT_THROW(Loader<int>(first(3), collate, {.batch_size = 0}), ValueError);
  EXPECT_THROW(Loader<int>(first(3), collate, {.num_workers = -1}), ValueError);
  EXPECT_THROW(Loader<int>(first(3), collate, {.prefetch_factor = 0}), ValueError);
  EXPECT_THROW(Loader<int>(first(3), nullptr), ValueError);
}

TEST_P(LoaderWithWorkers, GoesOnWhereItsStateWas) {
  const auto same = [](const Indices& indices) { return indices; };
  const LoaderOptions options{.batch_size = 4, .num_workers = GetParam()};
  for (const int given : {0, 1, 3, 6}) {
    Loader<Indices> first_loader(first(22), same, options), second(first(22), same, options);
    for (int i = 0; i < given; ++i) first_loader.next();
    const StateDict state = first_loader.state_dict();
    EXPECT_EQ(state.get<int64_t>("test", "samples"), given * 4);
    second.next();  // batches are being made ahead
    second.load_state_dict(state);
    for (int i = given; i < 6; ++i) EXPECT_EQ(second.next(), first_loader.next()) << given;
    EXPECT_FALSE(second.next());
    second.load_state_dict({{}, {{"samples", int64_t{20}}}});
    EXPECT_EQ(second.next(), (Indices{20, 21}));
  }
  Loader<Indices> loader(first(22), same, options);
  EXPECT_THROW(loader.load_state_dict({{}, {{"samples", int64_t{6}}}}), ValueError);
  EXPECT_THROW(loader.load_state_dict({{}, {{"samples", int64_t{28}}}}), ValueError);
  EXPECT_EQ(loader.next(), first(4));
}

}  // namespace
}  // namespace lockstep
