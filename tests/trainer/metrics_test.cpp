#include "lockstep/trainer/metrics.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/trainer/trainer_state.h"

namespace lockstep {
namespace {

ConfusionMatrix count(int64_t labels, const std::vector<int64_t>& truth,
                      const std::vector<int64_t>& predicted) {
  ConfusionMatrix matrix(labels);
  for (size_t i = 0; i < truth.size(); ++i) matrix.add(truth[i], predicted[i]);
  return matrix;
}

// Expected values: sklearn.metrics.f1_score(truth, predicted) and average="macro".
TEST(Metrics, BinaryF1ScoresLabelOne) {
  const auto matrix = count(2, {0, 0, 0, 1, 1, 1, 1, 1}, {0, 1, 0, 1, 1, 0, 1, 0});
  EXPECT_DOUBLE_EQ(matrix.accuracy(), 5.0 / 8.0);
  EXPECT_DOUBLE_EQ(matrix.f1(), 2.0 / 3.0);
}

TEST(Metrics, MacroF1OverMoreLabels) {
  const auto matrix = count(3, {0, 0, 1, 1, 2, 2, 2}, {0, 1, 1, 1, 2, 0, 2});
  EXPECT_DOUBLE_EQ(matrix.accuracy(), 5.0 / 7.0);
  EXPECT_NEAR(matrix.f1(), (0.5 + 0.8 + 0.8) / 3.0, 1e-12);
}

TEST(Metrics, LabelsThatNeverOccurAreLeftOut) {
  EXPECT_DOUBLE_EQ(count(4, {0, 1}, {0, 1}).f1(), 1.0);
  EXPECT_DOUBLE_EQ(count(2, {0, 0}, {0, 0}).f1(), 0.0);
  EXPECT_DOUBLE_EQ(ConfusionMatrix(3).f1(), 0.0);
  EXPECT_DOUBLE_EQ(ConfusionMatrix(3).accuracy(), 0.0);
}

TEST(Metrics, BadLabelsAreErrors) {
  ConfusionMatrix matrix(2);
  EXPECT_THROW(matrix.add(2, 0), ValueError);
  EXPECT_THROW(matrix.add(0, -1), ValueError);
  EXPECT_THROW(ConfusionMatrix(2, {1, 2, 3}), ValueError);
}

TEST(TrainerState, JsonHasHuggingFacesKeysSorted) {
  TrainerState state;
  state.log_history.push_back({.values = {{"loss", 0.5}, {"learning_rate", 5e-05}}, .epoch = 1.0, .step = 3});
  const std::string text = to_json(state);
  EXPECT_NE(text.find("  \"log_history\": [\n    {\n      \"epoch\": 1.0,\n      \"learning_rate\": 5e-05,\n"
                      "      \"loss\": 0.5,\n      \"step\": 3\n    }\n  ],\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.rfind("{\n  \"best_global_step\": null,", 0), 0u);
  EXPECT_EQ(text.substr(text.size() - 3), "\n}\n");
  EXPECT_EQ(to_json_line(state.log_history[0]), R"({"epoch":1.0,"learning_rate":5e-05,"loss":0.5,"step":3})");
}

}  // namespace
}  // namespace lockstep
