#include "lockstep/trainer/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep {

ConfusionMatrix::ConfusionMatrix(int64_t num_labels)
    : ConfusionMatrix(num_labels, std::vector<int64_t>(static_cast<size_t>(num_labels * num_labels))) {}

ConfusionMatrix::ConfusionMatrix(int64_t num_labels, std::vector<int64_t> counts)
    : num_labels_(num_labels), counts_(std::move(counts)) {
  if (num_labels < 1 || static_cast<int64_t>(counts_.size()) != num_labels * num_labels) {
    throw ValueError(fmt::format("a confusion matrix of {} labels has {} counts, not {}", num_labels,
                                 num_labels * num_labels, counts_.size()));
  }
}

void ConfusionMatrix::add(int64_t label, int64_t prediction) {
  for (const int64_t value : {label, prediction}) {
    if (value < 0 || value >= num_labels_) {
      throw ValueError(
          fmt::format("label {} is not one of the {} labels 0 to {}", value, num_labels_, num_labels_ - 1));
    }
  }
  ++counts_[static_cast<size_t>(label * num_labels_ + prediction)];
}

int64_t ConfusionMatrix::at(int64_t label, int64_t prediction) const {
  return counts_[static_cast<size_t>(label * num_labels_ + prediction)];
}

int64_t ConfusionMatrix::total() const { return std::accumulate(counts_.begin(), counts_.end(), int64_t{0}); }

double ConfusionMatrix::accuracy() const {
  int64_t right = 0;
  for (int64_t label = 0; label < num_labels_; ++label) right += at(label, label);
  return total() == 0 ? 0.0 : static_cast<double>(right) / static_cast<double>(total());
}

double ConfusionMatrix::f1_of(int64_t label) const {
  int64_t labelled = 0;
  int64_t predicted = 0;
  for (int64_t other = 0; other < num_labels_; ++other) {
    labelled += at(label, other);
    predicted += at(other, label);
  }
  if (labelled + predicted == 0) return -1.0;
  return 2.0 * static_cast<double>(at(label, label)) / static_cast<double>(labelled + predicted);
}

double ConfusionMatrix::f1() const {
  if (num_labels_ == 2) return std::max(0.0, f1_of(1));
  double sum = 0.0;
  int64_t present = 0;
  for (int64_t label = 0; label < num_labels_; ++label) {
    const double value = f1_of(label);
    if (value < 0) continue;
    sum += value;
    ++present;
  }
  return present == 0 ? 0.0 : sum / static_cast<double>(present);
}

}  // namespace lockstep
