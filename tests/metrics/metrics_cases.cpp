// Metrics over ranks.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include "lockstep/metrics/classification.h"
#include "lockstep/metrics/regression.h"
#include "lockstep/zoo/text/metrics/text_metric.h"
#include "lockstep/zoo/text/metrics/text_scores.h"
#include "tests/ranks/rank_test.h"

namespace lockstep::testing {
namespace {

TEST(Metrics, RanksAddTheirs) {
  const std::vector<std::shared_ptr<Metric>> over_ranks = {accuracy(), f1({.average = "macro"}), perplexity(),
                                                           pearson()};
  const std::vector<std::shared_ptr<Metric>> alone = {accuracy(), f1({.average = "macro"}), perplexity(),
                                                      pearson()};
  const auto generator = at::detail::createCPUGenerator(5);
  const auto feed = [&](const auto& metrics, const at::Tensor& scores, const at::Tensor& labels) {
    for (size_t m = 0; m < 3; ++m) metrics[m]->update(scores, labels);
    metrics[3]->update(scores.select(1, 0), labels);
  };
  // Unequal shares; rank 0 has none where there are others. Only rank 1's samples have the last class.
  for (int rank = 0; rank < world().size(); ++rank) {
    const int64_t samples = world().size() == 1 ? 7 : 5 * rank;
    const at::Tensor scores = at::rand({samples, 6}, generator, at::kDouble);
    const at::Tensor labels = at::randint(0, rank == 1 ? 6 : 4, {samples}, generator, at::kLong);
    feed(alone, scores, labels);
    if (rank == world().rank()) feed(over_ranks, scores, labels);
  }
  const std::vector<double> values = compute(over_ranks, world());
  for (size_t m = 0; m < values.size(); ++m) {
    EXPECT_NEAR(values[m], alone[m]->compute(), 1e-12) << alone[m]->name();
    EXPECT_EQ(over_ranks[m]->compute(world()), values[m]);
  }
  // All ranks get the same bits.
  const std::string own(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
  for (const std::string& other : world().all_gather_bytes(own)) EXPECT_EQ(other, own);
}

TEST(Metrics, RanksAddTheirNumbers) {
  const auto make = [] {
    return std::vector<std::shared_ptr<Metric>>{root_mean_squared_error(), r2(), spearman()};
  };
  const auto over_ranks = make(), alone = make();
  const auto generator = at::detail::createCPUGenerator(6);
  for (int rank = 0; rank < world().size();
       ++rank) {  // rank 0 has none where there are others; many are equal
    const int64_t samples = world().size() == 1 ? 9 : 8 * rank;
    const at::Tensor outputs = at::randint(0, 6, {samples}, generator, at::kDouble);
    const at::Tensor labels = outputs + 10 * rank + at::rand({samples}, generator, at::kDouble);
    for (const auto& metric : alone) metric->update(outputs, labels);
    if (rank != world().rank()) continue;
    for (const auto& metric : over_ranks) metric->update(outputs, labels);
  }
  const std::vector<double> values = compute(over_ranks, world());
  for (size_t m = 0; m < values.size(); ++m)
    EXPECT_NEAR(values[m], alone[m]->compute(), 1e-12) << alone[m]->name();
}

TEST(Metrics, ScoresOfTextsAreThoseOfAllRanksTexts) {
  const std::vector<std::shared_ptr<text::TextMetric>> metrics = {
      text::bleu(), text::chrf(), text::torchmetrics_bleu(), text::char_error_rate(),
      text::word_error_rate()};
  std::vector<std::string> hypotheses, references;
  for (int pair = 0; pair < 20; ++pair) {
    const std::string words = "one two three four " + std::to_string(pair * pair) + " five, six.";
    hypotheses.push_back(words.substr(0, words.size() - static_cast<size_t>(pair)));
    references.push_back(words + " the end");
    if (pair % world().size() != world().rank()) continue;
    for (const auto& metric : metrics) metric->update(hypotheses.back(), references.back());
  }
  const std::vector<double> values = compute(metrics, world());
  EXPECT_EQ(values, (std::vector<double>{text::corpus_bleu(hypotheses, references),
                                         text::corpus_chrf(hypotheses, references),
                                         text::torchmetrics_bleu(hypotheses, references),
                                         text::char_error_rate(hypotheses, references),
                                         text::word_error_rate(hypotheses, references)}));
  EXPECT_GT(values[0], 0);
  EXPECT_LT(values[0], 100);
  EXPECT_EQ(metrics[0]->compute(world()), values[0]);
}

}  // namespace
}  // namespace lockstep::testing
