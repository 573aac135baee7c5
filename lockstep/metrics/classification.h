// Metrics of classifiers and of models of text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/metrics/metric.h"

namespace lockstep {

/// All of these take scores (logits or probabilities) of shape [..., classes] and labels of shape [...]; those
/// without top_k and perplexity also take the predicted classes themselves, in the labels' shape. Of equal
/// scores the lower class counts as the higher one. Labels that are `ignore_index` are left out. Values over no
/// sample are 0. update() throws ValueError for a label that is not a class.
struct AccuracyOptions {
  int64_t ignore_index = -100;  ///< labels of this value are left out
};
/// "accuracy": the share of right predictions.
std::shared_ptr<Metric> accuracy(AccuracyOptions options = {});

/// Holds the options of top_k_accuracy().
struct TopKAccuracyOptions {
  int64_t k = 5;                ///< at least 1
  int64_t ignore_index = -100;  ///< labels of this value are left out
};
/// "top_5_accuracy": the share of samples whose label is among the k classes of the highest scores.
std::shared_ptr<Metric> top_k_accuracy(TopKAccuracyOptions options = {});

/// Holds the options of precision(), recall() and f1().
struct PrecisionRecallOptions {
  /// "binary": of the class pos_label, where there are two; "macro": the mean over the classes that occur as
  /// label or prediction; "weighted": their mean, weighted by how often each is the label; "micro": over all
  /// decisions, which for one label a sample is the accuracy.
  std::string average = "binary";
  int64_t pos_label = 1;        ///< 0 or 1: the class that "binary" counts
  int64_t ignore_index = -100;  ///< labels of this value are left out
  /// The score of a class that has no denominator, and that over no sample: 0, 1 or not a number, which means leave
  /// out.
  double zero_division = 0;
  /// The score of this class alone, in place of an average: an element of scikit-learn's average=None.
  std::optional<int64_t> of_class{};
  std::string name{};  ///< in place of "precision", "recall" or "f1"
};
/// "precision", "recall" and "f1", as scikit-learn's. Throw ValueError for an unknown average and for a zero_division
/// or a class that cannot be; binary ones in update() for a class that is neither 0 nor 1.
std::shared_ptr<Metric> precision(PrecisionRecallOptions options = {});
/// See precision().
std::shared_ptr<Metric> recall(PrecisionRecallOptions options = {});
/// See precision().
std::shared_ptr<Metric> f1(PrecisionRecallOptions options = {});

/// Holds the options of perplexity().
struct PerplexityOptions {
  int64_t ignore_index = -100;  ///< labels of this value are left out
};
/// "perplexity": exp of the mean negative log-probability of the labels, from logits, as torchmetrics'. Whoever
/// predicts the next token shifts the labels. Infinity over no token.
std::shared_ptr<Metric> perplexity(PerplexityOptions options = {});

}  // namespace lockstep
