#include "lockstep/zoo/text/metrics/text_scores.h"

#include "lockstep/zoo/text/metrics/text_counts.h"

namespace lockstep::text {
namespace {

using namespace text_counts;

double score_of(const Score& score, std::span<const std::string> hypotheses,
                std::span<const std::string> references) {
  check_sizes(score.name, hypotheses.size(), references.size());
  Counts counts;
  for (size_t i = 0; i < hypotheses.size(); ++i) add_pair(score, hypotheses[i], references[i], counts);
  return score.value(counts);
}

double score_of(const Score& score, std::string_view hypothesis, std::string_view reference) {
  Counts counts;
  add_pair(score, hypothesis, reference, counts);
  return score.value(counts);
}

}  // namespace

double corpus_bleu(std::span<const std::string> hypotheses, std::span<const std::string> references) {
  return score_of(kBleu, hypotheses, references);
}
double sentence_bleu(std::string_view hypothesis, std::string_view reference) {
  return score_of(kSentenceBleu, hypothesis, reference);
}
double corpus_chrf(std::span<const std::string> hypotheses, std::span<const std::string> references) {
  return score_of(kChrf, hypotheses, references);
}
double sentence_chrf(std::string_view hypothesis, std::string_view reference) {
  return score_of(kChrf, hypothesis, reference);
}
double torchmetrics_bleu(std::span<const std::string> hypotheses, std::span<const std::string> references) {
  return score_of(kTorchmetricsBleu, hypotheses, references);
}
double char_error_rate(std::span<const std::string> hypotheses, std::span<const std::string> references) {
  return score_of(kCharErrors, hypotheses, references);
}
double word_error_rate(std::span<const std::string> hypotheses, std::span<const std::string> references) {
  return score_of(kWordErrors, hypotheses, references);
}

}  // namespace lockstep::text
