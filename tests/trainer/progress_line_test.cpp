#include "lockstep/trainer/output/progress_line.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// Columns on the screen: code points, as every character drawn here is one column wide.
int columns(const std::string& text) {
  int count = 0;
  for (const unsigned char c : text) count += (c & 0xC0) != 0x80;
  return count;
}

Progress halfway() {
  return {.step = 50,
          .total_steps = 100,
          .epoch = 0.5,
          .loss = 0.69314,
          .learning_rate = 5e-5,
          .grad_norm = 1.25,
          .samples_per_second = 53.24,
          .seconds = 75,
          .seconds_left = 61};
}

TEST(TrainingLine, WideBarShowsEverything) {
  EXPECT_EQ(
      render_bar(halfway(), 100, false),
      " 50% |###########...........|  step 50/100  epoch 0.50  loss 0.6931  1:15, 1:01 left  53.2 samples/s");
}

TEST(TrainingLine, BarNeverExceedsTheColumns) {
  for (const bool unicode : {false, true}) {
    for (int64_t step = 0; step <= 100; ++step) {
      for (int width = 1; width <= 200; ++width) {
        auto progress = halfway();
        progress.step = step;
        ASSERT_LE(columns(render_bar(progress, width, unicode)), width) << "step " << step;
      }
    }
  }
}

TEST(TrainingLine, NarrowBarKeepsLossAndTimeLeft) {
  EXPECT_EQ(render_bar(halfway(), 80, false),
            " 50% |#########.........|  step 50/100  epoch 0.50  loss 0.6931  1:15, 1:01 left");
  EXPECT_EQ(render_bar(halfway(), 60, false), " 50% |#####.....|  step 50/100  loss 0.6931  1:15, 1:01 left");
  EXPECT_EQ(render_bar(halfway(), 50, false), " 50% |###...|  step 50/100  loss 0.6931  1:01 left");
  EXPECT_EQ(render_bar(halfway(), 40, false), " 50%  50/100  loss 0.6931  1:01 left");
  EXPECT_EQ(render_bar(halfway(), 30, false), " 50%  50/100  loss 0.6931");
  EXPECT_EQ(render_bar(halfway(), 20, false), " 50%  loss 0.6931");
}

TEST(TrainingLine, UnicodeBarFillsByEighths) {
  Progress progress{.step = 1, .total_steps = 16};
  const std::string bar = render_bar(progress, 4 + 3 + 8 + 2 + 9 + 2 + 10, true);
  EXPECT_EQ(bar, "  6% |▌       |  step 1/16  epoch 0.00");
  progress.step = 16;
  EXPECT_NE(render_bar(progress, 60, true).find("█|"), std::string::npos);
}

TEST(TrainingLine, UnknownsAreLeftOut) {
  EXPECT_EQ(render_log_line({.step = 0, .total_steps = 10}), "step 0/10 (0%)  epoch 0.00");
  EXPECT_EQ(
      render_log_line(halfway()),
      "step 50/100 (50%)  epoch 0.50  loss 0.6931  lr 5e-05  grad_norm 1.25  53.2 samples/s  1:01 left");
}

}  // namespace
}  // namespace lockstep
