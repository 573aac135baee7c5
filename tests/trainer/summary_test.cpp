#include "lockstep/trainer/output/summary.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(SummaryTable, HasALineForEachSplitAndAColumnForEachMetric) {
  EXPECT_EQ(summary_table({{"train",
                            {{"train_loss", 0.4523},
                             {"train_samples_per_second", 101.94},
                             {"train_runtime", 3},
                             {"epoch", 2}}},
                           {"eval",
                            {{"eval_loss", 0.41},
                             {"eval_accuracy", 0.88241},
                             {"eval_f1", 0.88},
                             {"eval_samples_per_second", 12410.3},
                             {"eval_steps_per_second", 5}}}}),
            "           loss  accuracy      f1  samples/s\n"
            "  train  0.4523                        101.9\n"
            "  eval   0.4100    0.8824  0.8800    12410.3");
  EXPECT_EQ(summary_table({}), "");
}

TEST(SummaryTable, HasADashForARateOfNoStep) {
  Metrics metrics{{"train_loss", 0.5}};
  add_speed(metrics, "train", 0.01, 0, 0);
  EXPECT_EQ(metrics, (Metrics{{"train_loss", 0.5}, {"train_runtime", 0.01}}));
  EXPECT_EQ(summary_table({{"train", metrics}}),
            "           loss  samples/s\n"
            "  train  0.5000          -");
  add_speed(metrics, "eval", 2, 20, 5);
  EXPECT_EQ(metrics.at("eval_samples_per_second"), 10);
  EXPECT_EQ(metrics.at("eval_steps_per_second"), 2.5);
}

TEST(LengthOfRun, TellsWhatThisPartOfTheRunHasDone) {
  TrainerState state;
  state.global_step = 75;
  state.epoch = 3;
  EXPECT_EQ(length_of_run(state, 0, 12), "75 steps, 3 epochs in 0:12");
  EXPECT_EQ(length_of_run(state, 50, 12), "75 steps, 3 epochs; steps 51 to 75 in 0:12");
  EXPECT_EQ(length_of_run(state, 74, 12), "75 steps, 3 epochs; step 75 in 0:12");
  EXPECT_EQ(length_of_run(state, 75, 12), "75 steps, 3 epochs; nothing was left to train");
}

}  // namespace
}  // namespace lockstep
