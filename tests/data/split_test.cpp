// Errors of splits, and what their lists are used for. That they are the peers': split_parity.py.
#include "lockstep/data/split.h"

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/numpy_random.h"
#include "lockstep/data/sampler.h"

namespace lockstep {
namespace {

std::string why(const std::function<void()>& body) {
  try {
    body();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TrainTestSplit, EverySampleIsOnOneSide) {
  const auto split = train_test_split(100, .07, 42);
  EXPECT_EQ(split.test.size(), 8u);
  auto all = split.train;
  all.insert(all.end(), split.test.begin(), split.test.end());
  std::sort(all.begin(), all.end());
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], i);
  EXPECT_EQ(train_test_split(100, 30, 42).train.size(), 70u);
  EXPECT_TRUE(train_test_split(0, .1, 42).train.empty());
}

TEST(TrainTestSplit, NamesTheSizeThatLeavesASideEmpty) {
  EXPECT_EQ(why([] { train_test_split(5, .9, 1); }),
            "test_size=0.9 of 5 samples leaves none to train on; choose a smaller test_size");
  for (const SplitSize size : {SplitSize(5), SplitSize(0), SplitSize(-1), SplitSize(0.0), SplitSize(1.0),
                               SplitSize(std::numeric_limits<double>::quiet_NaN())}) {
    EXPECT_NE(
        why([&] { train_test_split(5, size, 1); }).find("expected a whole number from 1 to 4 (there are 5"),
        std::string::npos);
  }
  EXPECT_EQ(why([] { shuffled_indices(-1, 0); }),
            "a dataset of -1 samples cannot be shuffled; expected 0 to 2^32");
}

TEST(RandomSplit, RefusesLengthsThatDoNotAddUp) {
  EXPECT_EQ(why([] {
              random_split(10, {4, 5}, 0);
            }),
            "random_split: the lengths sum to 9; expected the dataset's 10 samples");
  EXPECT_EQ(why([] { random_split(10, {-1, 11}, 0); }), "random_split: a part of -1 samples; there are 10");
  EXPECT_EQ(why([] { random_split(10, {.5, .25}, 0); }), "random_split: the shares sum to 0.75; expected 1");
  EXPECT_EQ(why([] {
              random_split(10, {1.5, -.5}, 0);
            }),
            "random_split: the share 1.5 is not between 0 and 1");
  EXPECT_EQ(why([] {
              random_split(10, {.5, 5}, 0);
            }),
            "random_split: the lengths are shares and whole numbers; expected all of one kind");
  EXPECT_EQ(random_split(10, {.7, .2, .1}, 0)[0].size(), 7u);  // in plain sums they are 1 - 2^-53
}

TEST(WeightedRandomIndices, DrawsInProportionAndNoneTwice) {
  const std::vector<double> weights = {0, 1, 3};
  const auto drawn = weighted_random_indices(weights, 40000, true, 7);
  EXPECT_EQ(std::count(drawn.begin(), drawn.end(), 0), 0);
  EXPECT_NEAR(static_cast<double>(std::count(drawn.begin(), drawn.end(), 2)), 30000, 500);
  auto both = weighted_random_indices(weights, 2, false, 7);
  std::sort(both.begin(), both.end());
  EXPECT_EQ(both, (std::vector<int64_t>{1, 2}));
}

TEST(WeightedRandomIndices, RefusesWhatCannotBeDrawn) {
  EXPECT_EQ(why([] {
              weighted_random_indices({1, 2}, 0, true, 0);
            }),
            "weighted sampling of 0 samples; expected at least one");
  EXPECT_EQ(why([] { weighted_random_indices({}, 1, true, 0); }),
            "weighted sampling with 0 weights; expected 1 to 16777216");
  EXPECT_EQ(why([] {
              weighted_random_indices({1, -2}, 1, true, 0);
            }),
            "the weight of sample 1 is -2; expected 0 or more");
  EXPECT_EQ(why([] { weighted_random_indices({std::numeric_limits<double>::infinity()}, 1, true, 0); }),
            "the weight of sample 0 is inf; expected 0 or more");
  EXPECT_EQ(why([] {
              weighted_random_indices({0, 1}, 2, false, 0);
            }),
            "1 of 2 weights are above 0, which is too few to draw 2 samples without replacement");
  EXPECT_EQ(why([] {
              weighted_random_indices({0, 0}, 2, true, 0);
            }),
            "0 of 2 weights are above 0, which is too few to draw 2 samples");
}

// numpy.random.default_rng(seed).bit_generator.random_raw().
TEST(NumpyGenerator, GivesNumPysBits) {
  data::NumpyGenerator zero(0);
  EXPECT_EQ(zero.next64(), 11749869230777074271u);
  data::NumpyGenerator large((uint64_t{1} << 32) + 42);
  EXPECT_EQ(large.next64(), 14637540996126288189u);
}

TEST(Subset, TakesItsSamplesFromTheDataset) {
  Dataset all = tensor_dataset({{"value", at::arange(10, 20)}});
  for (int64_t i = 0; i < 10; ++i) all.lengths.push_back(100 + i);
  const Dataset some = subset(subset(all, {7, 3, 3, 9}), {3, 1});
  EXPECT_EQ(some.size, 2);
  EXPECT_EQ(some.lengths, (std::vector<int64_t>{109, 103}));
  const at::Tensor values = some.collate({1, 0})["value"];
  EXPECT_EQ(values[0].item<int64_t>(), 13);
  EXPECT_EQ(values[1].item<int64_t>(), 19);
  EXPECT_EQ(why([&] { subset(all, {1, 10}); }), "subset: there is no sample 10; the dataset has 10");
  EXPECT_THROW(some.collate({2}), std::out_of_range);
}

}  // namespace
}  // namespace lockstep
