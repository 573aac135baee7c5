#include "lockstep/metrics/text_metric.h"

#include "lockstep/base/error.h"
#include "lockstep/metrics/text_counts.h"

namespace lockstep {
namespace {

class ScoreMetric : public TextMetric {
 public:
  explicit ScoreMetric(const text_counts::Score& score) : score_(score) {}
  std::string name() const override { return score_.name; }
  void update(std::string_view hypothesis, std::string_view reference) override {
    text_counts::add_pair(score_, hypothesis, reference, state_);
  }

 private:
  double value_of(const State& state) const override { return score_.value(state); }
  const text_counts::Score& score_;
};

}  // namespace

void TextMetric::update(std::span<const std::string> hypotheses, std::span<const std::string> references) {
  text_counts::check_sizes(name(), hypotheses.size(), references.size());
  for (size_t i = 0; i < hypotheses.size(); ++i) update(hypotheses[i], references[i]);
}

std::vector<double> compute(std::span<const std::shared_ptr<TextMetric>> metrics, const ProcessGroup& group) {
  std::vector<const MetricBase*> all;
  for (const auto& metric : metrics) all.push_back(metric.get());
  return TextMetric::compute_all(all, group);
}

std::shared_ptr<TextMetric> bleu() { return std::make_shared<ScoreMetric>(text_counts::kBleu); }
std::shared_ptr<TextMetric> chrf() { return std::make_shared<ScoreMetric>(text_counts::kChrf); }
std::shared_ptr<TextMetric> torchmetrics_bleu() {
  return std::make_shared<ScoreMetric>(text_counts::kTorchmetricsBleu);
}
std::shared_ptr<TextMetric> char_error_rate() {
  return std::make_shared<ScoreMetric>(text_counts::kCharErrors);
}
std::shared_ptr<TextMetric> word_error_rate() {
  return std::make_shared<ScoreMetric>(text_counts::kWordErrors);
}

}  // namespace lockstep
