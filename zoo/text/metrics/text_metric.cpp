#include "lockstep/zoo/text/metrics/text_metric.h"

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/zoo/text/metrics/text_counts.h"

namespace lockstep::text {
namespace {

class ScoreMetric : public TextMetric {
 public:
  explicit ScoreMetric(text_counts::Score score) : score_(std::move(score)) {}
  std::string name() const override { return score_.name; }
  void update(std::string_view hypothesis, std::string_view reference) override {
    text_counts::add_pair(score_, hypothesis, reference, state_);
  }

 private:
  double value_of(const State& state) const override { return score_.value(state); }
  text_counts::Score score_;
};

}  // namespace

class MetricOfTexts : public Metric {
 public:
  using TextsOf = std::function<Texts(const at::Tensor&, const at::Tensor&)>;
  MetricOfTexts(std::shared_ptr<TextMetric> metric, TextsOf texts)
      : metric_(std::move(metric)), texts_(std::move(texts)) {}
  std::string name() const override { return metric_->name(); }
  void update(const at::Tensor& outputs, const at::Tensor& labels) override {
    const auto [hypotheses, references] = texts_(outputs, labels);
    metric_->reset();
    metric_->update(hypotheses, references);
    metric_->merge(state_, metric_->state());
  }

 private:
  void merge(State& into, const State& other) const override { metric_->merge(into, other); }
  double value_of(const State& state) const override { return metric_->value_of(state); }
  std::shared_ptr<TextMetric> metric_;
  TextsOf texts_;
};

std::shared_ptr<Metric> metric_of_texts(std::shared_ptr<TextMetric> metric, MetricOfTexts::TextsOf texts) {
  return std::make_shared<MetricOfTexts>(std::move(metric), std::move(texts));
}

void TextMetric::update(std::span<const std::string> hypotheses, std::span<const std::string> references) {
  text_counts::check_sizes(name(), hypotheses.size(), references.size());
  for (size_t i = 0; i < hypotheses.size(); ++i) update(hypotheses[i], references[i]);
}

std::vector<double> compute(std::span<const std::shared_ptr<TextMetric>> metrics, const ProcessGroup& group) {
  std::vector<const MetricBase*> all;
  for (const auto& metric : metrics) all.push_back(metric.get());
  return TextMetric::compute_all(all, group);
}

std::shared_ptr<TextMetric> bleu(const BleuOptions& options) {
  return std::make_shared<ScoreMetric>(text_counts::bleu_score(options));
}
std::shared_ptr<TextMetric> chrf(const ChrfOptions& options) {
  return std::make_shared<ScoreMetric>(text_counts::chrf_score(options));
}
std::shared_ptr<TextMetric> torchmetrics_bleu() {
  return std::make_shared<ScoreMetric>(text_counts::torchmetrics_bleu_score());
}
std::shared_ptr<TextMetric> char_error_rate() {
  return std::make_shared<ScoreMetric>(text_counts::character_error_score());
}
std::shared_ptr<TextMetric> word_error_rate() {
  return std::make_shared<ScoreMetric>(text_counts::word_error_score());
}

}  // namespace lockstep::text
