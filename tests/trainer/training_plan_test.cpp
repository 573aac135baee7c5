#include "lockstep/trainer/training_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TrainingArguments arguments(int64_t batch, int64_t accumulation = 1, double epochs = 1) {
  TrainingArguments out;
  out.per_device_train_batch_size = batch;
  out.gradient_accumulation_steps = accumulation;
  out.num_train_epochs = epochs;
  return out;
}

std::vector<int64_t> iota(int64_t n) {
  std::vector<int64_t> out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

TEST(TrainingPlan, CountsStepsAsHuggingFaceDoes) {
  // 100 samples, 2 ranks x 8: 7 micro-batches; accumulated by 3: 3 steps, the last of a single micro-batch.
  const auto plan = plan_training(100, 2, arguments(8, 3, 2.5));
  EXPECT_EQ(plan.micro_batches_per_epoch, 7);
  EXPECT_EQ(plan.update_steps_per_epoch, 3);
  EXPECT_EQ(plan.max_steps, 8);  // ceil(2.5 x 3)
  EXPECT_EQ(plan.num_train_epochs, 3);
  EXPECT_EQ(plan.total_train_batch_size, 48);
  EXPECT_EQ(plan.micro_batches_of(0), 3);
  EXPECT_EQ(plan.micro_batches_of(2), 1);
  EXPECT_EQ(plan.samples_of(1), 48);
  EXPECT_EQ(plan.samples_of(2), 4);
}

TEST(TrainingPlan, MaxStepsOverridesEpochs) {
  auto given = arguments(8, 1, 3);
  given.max_steps = 10;
  const auto plan = plan_training(32, 1, given);
  EXPECT_EQ(plan.max_steps, 10);
  EXPECT_EQ(plan.num_train_epochs, 3);  // 4 + 4 + 2 steps
}

TEST(TrainingPlan, DropLast) {
  auto given = arguments(8);
  given.dataloader_drop_last = true;
  EXPECT_EQ(plan_training(100, 2, given).micro_batches_per_epoch, 6);
  EXPECT_THROW(plan_training(15, 2, given), ValueError);
}

TEST(TrainingPlan, FewerSamplesThanRanksIsAnError) {
  try {
    plan_training(2, 3, arguments(8));
    FAIL() << "no error";
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(),
                 "the training set has 2 samples, fewer than the 3 ranks; start at most 2 processes");
  }
}

// Whatever the number of ranks, the union of the ranks' micro-batch k is the k-th slice of the order.
TEST(DealEpoch, EverySampleCountsOnceAndGlobalBatchesDoNotDependOnTheRanks) {
  for (const int64_t total : {1, 2, 3, 15, 16, 17, 31, 32, 33, 100}) {
    for (const int world : {1, 2, 3, 4}) {
      if (total < world) continue;
      for (const int64_t batch : {1, 4, 16}) {
        const int64_t micro_batches = plan_training(total, world, arguments(batch)).micro_batches_per_epoch;
        std::map<int64_t, int64_t> micro_batch_of;
        for (int rank = 0; rank < world; ++rank) {
          const auto epoch = deal_epoch(iota(total), world, rank, batch, false);
          const auto size = static_cast<int64_t>(epoch.indices.size());
          ASSERT_EQ((size + batch - 1) / batch, micro_batches);
          const int64_t counted = size - (epoch.last_is_substitute ? 1 : 0);
          if (epoch.last_is_substitute) {
            ASSERT_EQ(counted % batch, 0);
          }
          for (int64_t i = 0; i < counted; ++i) {
            const auto index = epoch.indices[static_cast<size_t>(i)];
            ASSERT_TRUE(micro_batch_of.emplace(index, i / batch).second) << "sample twice: " << index;
          }
        }
        ASSERT_EQ(static_cast<int64_t>(micro_batch_of.size()), total);
        for (const auto& [index, micro_batch] : micro_batch_of) {
          ASSERT_EQ(micro_batch, index / (batch * world));
        }
      }
    }
  }
}

TEST(DealEpoch, DropLastLeavesWholeBatches) {
  const auto epoch = deal_epoch(iota(21), 2, 1, 4, true);
  EXPECT_EQ(epoch.indices, (std::vector<int64_t>{1, 3, 5, 7, 9, 11, 13, 15}));
  EXPECT_FALSE(epoch.last_is_substitute);
}

}  // namespace
}  // namespace lockstep
