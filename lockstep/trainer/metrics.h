// Metrics of a classifier, computed from counts, so that ranks add up their counts and nothing else.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

/// Counts of (label, prediction) pairs.
class ConfusionMatrix {
 public:
  explicit ConfusionMatrix(int64_t num_labels);
  /// From `counts`, row-major [label][prediction].
  ConfusionMatrix(int64_t num_labels, std::vector<int64_t> counts);

  /// Throws ValueError when either is not in [0, num_labels).
  void add(int64_t label, int64_t prediction);

  /// Share of right predictions; 0 when nothing was counted.
  double accuracy() const;
  /// Two labels: F1 of label 1, as scikit-learn's binary f1_score. More: the mean of every label's F1
  /// (macro), over the labels that occur as label or prediction. A label without a right prediction has F1 0.
  double f1() const;

  int64_t total() const;
  int64_t num_labels() const { return num_labels_; }
  const std::vector<int64_t>& counts() const { return counts_; }

 private:
  int64_t at(int64_t label, int64_t prediction) const;
  /// F1 of one label, negative when it occurs neither as label nor as prediction.
  double f1_of(int64_t label) const;

  int64_t num_labels_;
  std::vector<int64_t> counts_;
};

}  // namespace lockstep
