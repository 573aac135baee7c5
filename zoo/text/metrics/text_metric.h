// Metrics of texts, streaming and over ranks. As plain functions: text_scores.h, which also says which text to
// give.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/metrics/metric.h"
#include "lockstep/zoo/text/metrics/text_scores.h"

namespace lockstep::text {

/// A metric of pairs of texts. Derive from it for one of your own, as from Metric.
class TextMetric : public MetricBase {
 public:
  /// Takes in a pair of UTF-8 texts. Throws ValueError that names the metric where one is not UTF-8.
  virtual void update(std::string_view hypothesis, std::string_view reference) = 0;
  /// Takes in a batch. Throws ValueError where the numbers of texts differ.
  void update(std::span<const std::string> hypotheses, std::span<const std::string> references);

 private:
  friend class MetricOfTexts;
  friend std::vector<double> compute(std::span<const std::shared_ptr<TextMetric>> metrics,
                                     const ProcessGroup& group);
};

/// The values of several metrics in one exchange. Called by all ranks with the same metrics in the same order;
/// blocks.
std::vector<double> compute(std::span<const std::shared_ptr<TextMetric>> metrics, const ProcessGroup& group);

/// Hypotheses and references.
using Texts = std::pair<std::vector<std::string>, std::vector<std::string>>;
/// `metric` as one of tensors, for a Trainer: `texts` makes texts of a batch's outputs and labels. Every update()
/// calls it. `metric` is this one's alone.
std::shared_ptr<Metric> metric_of_texts(
    std::shared_ptr<TextMetric> metric,
    std::function<Texts(const at::Tensor& outputs, const at::Tensor& labels)> texts);

/// "bleu": corpus_bleu. Throws ValueError for an unknown tokenizer.
std::shared_ptr<TextMetric> bleu(const BleuOptions& options = {});
/// "chrf2", with words "chrf2++": corpus_chrf. Throws ValueError for a negative word_order.
std::shared_ptr<TextMetric> chrf(const ChrfOptions& options = {});
/// "torchmetrics_bleu": torchmetrics_bleu.
std::shared_ptr<TextMetric> torchmetrics_bleu();
/// "cer": char_error_rate.
std::shared_ptr<TextMetric> char_error_rate();
/// "wer": word_error_rate.
std::shared_ptr<TextMetric> word_error_rate();

}  // namespace lockstep::text
