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

double corpus_bleu(std::span<const std::string> hypotheses, std::span<const std::string> references,
                   const BleuOptions& options) {
  return score_of(bleu_score(options), hypotheses, references);
}
double sentence_bleu(std::string_view hypothesis, std::string_view reference, const BleuOptions& options) {
  return score_of(sentence_bleu_score(options), hypothesis, reference);
}
double corpus_chrf(std::span<const std::string> hypotheses, std::span<const std::string> references,
                   const ChrfOptions& options) {
  return score_of(chrf_score(options), hypotheses, references);
}
double sentence_chrf(std::string_view hypothesis, std::string_view reference, const ChrfOptions& options) {
  return score_of(chrf_score(options), hypothesis, reference);
}
double torchmetrics_bleu(std::span<const std::string> hypotheses, std::span<const std::string> references) {
  return score_of(torchmetrics_bleu_score(), hypotheses, references);
}
double char_error_rate(std::span<const std::string> hypotheses, std::span<const std::string> references) {
  return score_of(character_error_score(), hypotheses, references);
}
double word_error_rate(std::span<const std::string> hypotheses, std::span<const std::string> references) {
  return score_of(word_error_score(), hypotheses, references);
}

}  // namespace lockstep::text
