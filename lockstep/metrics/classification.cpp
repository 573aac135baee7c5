#include "lockstep/metrics/classification.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_log_softmax.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse(const std::string& metric, const at::Tensor& outputs, const at::Tensor& labels,
                         const char* expected) {
  throw ValueError(fmt::format("the metric {} got outputs of shape {} and labels of shape {}; it takes {}",
                               metric, c10::str(outputs.sizes()), c10::str(labels.sizes()), expected));
}

/// Rows of scores and their labels, without those to be ignored.
struct Scores {
  at::Tensor rows;    // [samples, classes]
  at::Tensor labels;  // int64 [samples]
};

at::Tensor flat_labels(const std::string& metric, const at::Tensor& labels) {
  if (at::isFloatingType(labels.scalar_type()) || labels.is_complex()) {
    throw ValueError(fmt::format("the metric {} got labels of type {}; they must be whole numbers", metric,
                                 labels.dtype().name()));
  }
  return labels.detach().to(at::kCPU, at::kLong).reshape({-1});
}

Scores check_scores(const std::string& metric, const at::Tensor& outputs, const at::Tensor& labels,
                    int64_t ignore_index) {
  if (outputs.dim() != labels.dim() + 1 || outputs.dim() == 0 || outputs.size(-1) < 1 ||
      outputs.sizes().slice(0, static_cast<size_t>(labels.dim())) != labels.sizes()) {
    refuse(metric, outputs, labels, "scores [..., classes] and labels [...]");
  }
  Scores scores{outputs.detach().to(at::kCPU).reshape({-1, outputs.size(-1)}), flat_labels(metric, labels)};
  if (scores.rows.scalar_type() != at::kDouble) scores.rows = scores.rows.to(at::kFloat);
  const at::Tensor counts = scores.labels != ignore_index;
  if (!counts.all().item<bool>()) {
    scores = {scores.rows.index({counts}), scores.labels.index({counts})};
  }
  const int64_t classes = outputs.size(-1);
  for (const int64_t label :
       std::span(scores.labels.const_data_ptr<int64_t>(), static_cast<size_t>(scores.labels.numel()))) {
    if (label >= 0 && label < classes) continue;
    throw ValueError(fmt::format("the metric {} got the label {}; the model has the {} classes 0 to {}",
                                 metric, label, classes, classes - 1));
  }
  return scores;
}

/// Predictions and labels of the samples that count.
template <class See>
void for_each_decision(const std::string& metric, const at::Tensor& outputs, const at::Tensor& labels,
                       int64_t ignore_index, const See& see) {
  const at::NoGradGuard no_grad;
  at::Tensor predicted, truth;
  if (outputs.sizes() == labels.sizes() && !at::isFloatingType(outputs.scalar_type())) {
    predicted = flat_labels(metric, outputs);
    truth = flat_labels(metric, labels);
  } else {
    const Scores scores = check_scores(metric, outputs, labels, ignore_index);
    predicted = scores.rows.argmax(1);
    truth = scores.labels;
  }
  const auto* p = predicted.const_data_ptr<int64_t>();
  const auto* t = truth.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < truth.numel(); ++i) {
    if (t[i] == ignore_index) continue;
    if (p[i] < 0 || t[i] < 0) {
      throw ValueError(
          fmt::format("the metric {} got the class {}; classes begin at 0", metric, std::min(p[i], t[i])));
    }
    see(p[i], t[i]);
  }
}

/// As argmax() and topk() order scores: what is not a number is above all numbers.
bool is_above(double a, double b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

double ratio(double part, double whole) { return whole == 0 ? 0 : part / whole; }

/// State: right ones, samples.
class Accuracy : public Metric {
 public:
  explicit Accuracy(AccuracyOptions options) : options_(options) {}
  std::string name() const override { return "accuracy"; }
  void update(const at::Tensor& outputs, const at::Tensor& labels) override {
    double right = 0, samples = 0;
    for_each_decision(name(), outputs, labels, options_.ignore_index, [&](int64_t predicted, int64_t label) {
      right += predicted == label ? 1 : 0;
      ++samples;
    });
    merge(state_, {right, samples});
  }

 private:
  double value_of(const State& state) const override { return state.empty() ? 0 : ratio(state[0], state[1]); }
  AccuracyOptions options_;
};

/// State: as above.
class TopKAccuracy : public Metric {
 public:
  explicit TopKAccuracy(TopKAccuracyOptions options) : options_(options) {
    if (options.k < 1)
      throw ValueError(fmt::format("top_k_accuracy: k is {}; it must be 1 or more", options.k));
  }
  std::string name() const override { return fmt::format("top_{}_accuracy", options_.k); }
  void update(const at::Tensor& outputs, const at::Tensor& labels) override {
    const at::NoGradGuard no_grad;
    const Scores scores = check_scores(name(), outputs, labels, options_.ignore_index);
    const at::Tensor rows = scores.rows.to(at::kDouble).contiguous();
    const int64_t classes = rows.size(1);
    double right = 0;
    for (int64_t i = 0; i < rows.size(0); ++i) {
      const double* row = rows.const_data_ptr<double>() + i * classes;
      const int64_t label = scores.labels.const_data_ptr<int64_t>()[i];
      int64_t before = 0;
      for (int64_t c = 0; c < classes; ++c) {
        before += is_above(row[c], row[label]) || (c < label && !is_above(row[label], row[c])) ? 1 : 0;
      }
      right += before < options_.k ? 1 : 0;
    }
    merge(state_, {right, static_cast<double>(rows.size(0))});
  }

 private:
  double value_of(const State& state) const override { return state.empty() ? 0 : ratio(state[0], state[1]); }
  TopKAccuracyOptions options_;
};

enum class Score { precision, recall, f1 };
enum class Average { binary, macro, weighted, micro };

Average parse_average(const std::string& metric, const std::string& name) {
  for (const auto& [known, average] :
       {std::pair("binary", Average::binary), std::pair("macro", Average::macro),
        std::pair("weighted", Average::weighted), std::pair("micro", Average::micro)}) {
    if (name == known) return average;
  }
  throw ValueError(
      fmt::format("{}: average is \"{}\"; it may be binary, macro, weighted or micro", metric, name));
}

/// The mean of values, of which those that are not a number are left out, as scikit-learn has it: weights that are all 0
/// do not count.
class MeanOfNumbers {
 public:
  void add(double value, double weight) {
    if (std::isnan(value)) return;
    weighted_ += weight * value;
    weights_ += weight;
    sum_ += value;
    ++count_;
  }
  double value() const { return weights_ != 0 ? weighted_ / weights_ : sum_ / count_; }
  bool empty() const { return count_ == 0; }

 private:
  double weighted_ = 0, weights_ = 0, sum_ = 0, count_ = 0;
};

/// State, for each class: how often it was predicted rightly, predicted, and the label.
class PrecisionRecall final : public Metric {
 public:
  PrecisionRecall(Score score, PrecisionRecallOptions options)
      : score_(score), options_(std::move(options)), average_(parse_average(name(), options_.average)) {
    if (options_.pos_label != 0 && options_.pos_label != 1) {
      throw ValueError(fmt::format("{}: pos_label is {}; it may be 0 or 1", name(), options_.pos_label));
    }
    if (options_.of_class && *options_.of_class < 0) {
      throw ValueError(fmt::format("{}: of_class is {}; classes begin at 0", name(), *options_.of_class));
    }
    const double value = options_.zero_division;
    if (value != 0 && value != 1 && !std::isnan(value)) {
      throw ValueError(fmt::format("{}: zero_division is {}; it may be 0, 1 or not a number", name(), value));
    }
  }
  std::string name() const override {
    if (!options_.name.empty()) return options_.name;
    return score_ == Score::precision ? "precision" : score_ == Score::recall ? "recall" : "f1";
  }
  void update(const at::Tensor& outputs, const at::Tensor& labels) override {
    for_each_decision(name(), outputs, labels, options_.ignore_index, [&](int64_t predicted, int64_t label) {
      const int64_t highest = std::max(predicted, label);
      if (average_ == Average::binary && !options_.of_class && highest > 1) {
        throw ValueError(
            fmt::format("{}: the binary average is of two classes, but there is a class {}; "
                        "set average to macro, weighted or micro",
                        name(), highest));
      }
      const auto needed = static_cast<size_t>(3 * (highest + 1));
      if (state_.size() < needed) state_.resize(needed);
      if (predicted == label) ++state_[static_cast<size_t>(3 * label)];
      ++state_[static_cast<size_t>(3 * predicted + 1)];
      ++state_[static_cast<size_t>(3 * label + 2)];
    });
  }

 private:
  struct Counts {
    double right = 0, predicted = 0, labeled = 0;
  };
  static Counts read_counts(const State& state, int64_t wanted) {
    const auto at = static_cast<size_t>(3 * wanted);
    if (at + 2 >= state.size()) return {};
    return {state[at], state[at + 1], state[at + 2]};
  }
  double divide(double part, double whole) const {
    return whole == 0 ? options_.zero_division : part / whole;
  }
  double score(const Counts& counts) const {
    switch (score_) {
      case Score::precision:
        return divide(counts.right, counts.predicted);
      case Score::recall:
        return divide(counts.right, counts.labeled);
      case Score::f1:
        return divide(2 * counts.right, counts.predicted + counts.labeled);
    }
    return 0;
  }
  double value_of(const State& state) const override {
    if (options_.of_class) return score(read_counts(state, *options_.of_class));
    if (average_ == Average::binary) return score(read_counts(state, options_.pos_label));
    Counts all;
    MeanOfNumbers mean;
    for (int64_t c = 0; c < static_cast<int64_t>(state.size() / 3); ++c) {
      const Counts counts = read_counts(state, c);
      all.right += counts.right;
      all.predicted += counts.predicted;
      all.labeled += counts.labeled;
      if (counts.predicted + counts.labeled == 0) continue;
      mean.add(score(counts), average_ == Average::weighted ? counts.labeled : 1);
    }
    if (average_ == Average::micro) return score(all);
    if (state.empty()) return options_.zero_division;
    return mean.empty() ? std::numeric_limits<double>::quiet_NaN() : mean.value();
  }
  Score score_;
  PrecisionRecallOptions options_;
  Average average_;
};

/// State: sum of negative log-probabilities, tokens.
class Perplexity : public Metric {
 public:
  explicit Perplexity(PerplexityOptions options) : options_(options) {}
  std::string name() const override { return "perplexity"; }
  void update(const at::Tensor& outputs, const at::Tensor& labels) override {
    const at::NoGradGuard no_grad;
    const Scores scores = check_scores(name(), outputs, labels, options_.ignore_index);
    const at::Tensor chances = at::_log_softmax(scores.rows, 1, /*half_to_float=*/false);
    const at::Tensor of_labels = chances.gather(1, scores.labels.unsqueeze(1)).to(at::kDouble);
    merge(state_, {-of_labels.sum().item<double>(), static_cast<double>(scores.labels.numel())});
  }

 private:
  double value_of(const State& state) const override {
    if (state.empty() || state[1] == 0) return std::numeric_limits<double>::infinity();
    return std::exp(state[0] / state[1]);
  }
  PerplexityOptions options_;
};

}  // namespace

std::shared_ptr<Metric> accuracy(AccuracyOptions options) { return std::make_shared<Accuracy>(options); }
std::shared_ptr<Metric> top_k_accuracy(TopKAccuracyOptions options) {
  return std::make_shared<TopKAccuracy>(options);
}
std::shared_ptr<Metric> precision(PrecisionRecallOptions options) {
  return std::make_shared<PrecisionRecall>(Score::precision, std::move(options));
}
std::shared_ptr<Metric> recall(PrecisionRecallOptions options) {
  return std::make_shared<PrecisionRecall>(Score::recall, std::move(options));
}
std::shared_ptr<Metric> f1(PrecisionRecallOptions options) {
  return std::make_shared<PrecisionRecall>(Score::f1, std::move(options));
}
std::shared_ptr<Metric> perplexity(PerplexityOptions options) {
  return std::make_shared<Perplexity>(options);
}

}  // namespace lockstep
