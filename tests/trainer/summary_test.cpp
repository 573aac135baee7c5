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

}  // namespace
}  // namespace lockstep
