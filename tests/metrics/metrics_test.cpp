// What metrics_parity_test.py does not ask of the peers.
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/metrics/classification.h"
#include "lockstep/metrics/regression.h"

namespace lockstep {
namespace {

at::Tensor labels(std::vector<int64_t> values) { return at::tensor(values, at::kLong); }

double of(const std::shared_ptr<Metric>& metric, const at::Tensor& outputs, const at::Tensor& truth) {
  metric->reset();
  metric->update(outputs, truth);
  return metric->compute();
}

TEST(Metrics, OfEqualScoresTheLowerClassWins) {
  const at::Tensor scores = at::zeros({2, 4});
  EXPECT_DOUBLE_EQ(of(accuracy(), scores, labels({0, 1})), 0.5);
  EXPECT_DOUBLE_EQ(of(top_k_accuracy({.k = 2}), scores, labels({1, 2})), 0.5);
}

TEST(Metrics, ScoresThatAreNotNumbersAreNotRight) {
  const at::Tensor nothing = at::full({3, 4}, std::nan(""));
  const at::Tensor truth = labels({1, 2, 3});
  EXPECT_DOUBLE_EQ(of(accuracy(), nothing, truth), 0);
  EXPECT_DOUBLE_EQ(of(top_k_accuracy({.k = 1}), nothing, truth), 0);
  EXPECT_NEAR(of(top_k_accuracy({.k = 2}), nothing, truth), 1.0 / 3, 1e-12);
  const at::Tensor other = at::tensor({std::nan(""), 2.0, 1.0}).view({1, 3});
  EXPECT_DOUBLE_EQ(of(top_k_accuracy({.k = 1}), other, labels({1})), 0);
  EXPECT_DOUBLE_EQ(of(top_k_accuracy({.k = 2}), other, labels({1})), 1);
}

TEST(Metrics, IgnoredLabelsAreLeftOut) {
  const at::Tensor scores = at::tensor({0.0, 1.0, 1.0, 0.0, 0.0, 1.0}).view({1, 3, 2});
  const at::Tensor truth = labels({1, -100, 0}).view({1, 3});
  EXPECT_DOUBLE_EQ(of(accuracy(), scores, truth), 0.5);
  EXPECT_DOUBLE_EQ(of(top_k_accuracy({.k = 1}), scores, truth), 0.5);
  EXPECT_DOUBLE_EQ(of(recall({.average = "micro"}), scores, truth), 0.5);
  EXPECT_NEAR(of(perplexity(), scores, truth),
              std::exp(0.5 * (std::log1p(std::exp(-1.0)) + std::log1p(std::exp(1.0)))), 1e-12);
}

TEST(Metrics, OverNothing) {
  EXPECT_EQ(accuracy()->compute(), 0);
  EXPECT_EQ(f1({.average = "macro"})->compute(), 0);
  EXPECT_TRUE(std::isinf(perplexity()->compute()));
  EXPECT_TRUE(std::isnan(mean_absolute_error()->compute()));
  EXPECT_TRUE(std::isnan(pearson()->compute()));
  EXPECT_DOUBLE_EQ(of(accuracy(), at::zeros({0, 3}), labels({})), 0);
}

TEST(Metrics, AreReset) {
  const auto metric = accuracy();
  metric->update(labels({1, 1}), labels({0, 0}));
  EXPECT_DOUBLE_EQ(of(metric, labels({1}), labels({1})), 1);
}

TEST(Metrics, CorrelationKeepsItsDigitsFarFromZero) {
  const auto metric = pearson();
  for (const double x : {1.0, 2.0, 3.0, 5.0}) {
    metric->update(at::full({1}, 1e9 + x, at::kDouble), at::full({1}, 1e9 + x * x, at::kDouble));
  }
  EXPECT_NEAR(metric->compute(), 0.9814896185992756,
              1e-7);  // scipy.stats.pearsonr([1, 2, 3, 5], [1, 4, 9, 25])
  EXPECT_TRUE(std::isnan(of(pearson(), at::zeros({3}), at::tensor({1.0, 2.0, 3.0}))));
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Metrics, WhatDoesNotFitIsAnError) {
  const at::Tensor scores = at::zeros({2, 3});
  EXPECT_EQ(error_of([&] {
              accuracy()->update(scores, labels({0, 3}));
            }),
            "the metric accuracy got the label 3; the model has the 3 classes 0 to 2");
  EXPECT_EQ(
      error_of([&] {
        perplexity()->update(scores, labels({0, 1, 2}));
      }),
      "the metric perplexity got outputs of shape [2, 3] and labels of shape [3]; it takes scores [..., classes] "
      "and labels [...]");
  EXPECT_EQ(error_of([&] { accuracy()->update(scores, at::zeros({2})); }),
            "the metric accuracy got labels of type float; they must be whole numbers");
  EXPECT_EQ(error_of([&] { accuracy()->update(labels({-1}), labels({0})); }),
            "the metric accuracy got the class -1; classes begin at 0");
  EXPECT_EQ(
      error_of([&] {
        f1()->update(scores, labels({0, 2}));
      }),
      "f1: the binary average is of two classes, but there is a class 2; set average to macro, weighted or micro");
  EXPECT_EQ(error_of([&] { recall({.average = "mean"}); }),
            "recall: average is \"mean\"; it may be binary, macro, weighted or micro");
  EXPECT_EQ(error_of([&] { top_k_accuracy({.k = 0}); }), "top_k_accuracy: k is 0; it must be 1 or more");
  EXPECT_EQ(error_of([&] { mean_squared_error()->update(scores, at::zeros({2})); }),
            "the metric mse got 6 outputs and 2 labels; it takes as many of both");
}

}  // namespace
}  // namespace lockstep
