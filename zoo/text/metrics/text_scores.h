// How close texts are to reference texts: BLEU, chrF, error rates. Plain functions, without tensors or ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::text {

/// Which text to give: BLEU and chrF are for running text as people write it. Give detokenized sentences, not
/// words joined by spaces: sacrebleu's 13a splits words itself. torchmetrics_bleu and the error rates split at
/// white space only. Case counts unless `lowercase` is set. Texts are UTF-8; otherwise they throw ValueError, also where
/// there are more hypotheses than references or fewer. Over no text at all they are 0. Thread-safe.

/// As sacrebleu's BLEU.
struct BleuOptions {
  /// How words are split: "13a"; "intl", by Unicode's categories of punctuation and symbols; "char", every character
  /// is a word; "none", at white space.
  std::string tokenize = "13a";
  bool lowercase = false;  ///< compare texts in lower case
  std::string name{};      ///< of the metric and in errors; empty: "bleu"
};
/// sacrebleu's corpus_bleu with one reference: 0 to 100; up to 4 words, exponential smoothing. Throws ValueError for an
/// unknown tokenizer.
double corpus_bleu(std::span<const std::string> hypotheses, std::span<const std::string> references,
                   const BleuOptions& options = {});
/// sacrebleu's sentence_bleu: the same of one pair, but only orders that the hypothesis is long enough for.
double sentence_bleu(std::string_view hypothesis, std::string_view reference,
                     const BleuOptions& options = {});

/// As sacrebleu's CHRF.
struct ChrfOptions {
  int64_t word_order = 0;  ///< words a sequence at most: 0 is chrF, 2 is chrF++
  bool lowercase = false;  ///< compare texts in lower case
  std::string name{};      ///< of the metric and in errors; empty: "chrf2", with words "chrf2+" and "chrf2++"
};
/// sacrebleu's corpus_chrf: 0 to 100; 1 to 6 characters without white space, recall counts twice. Throws ValueError for a
/// negative word_order.
double corpus_chrf(std::span<const std::string> hypotheses, std::span<const std::string> references,
                   const ChrfOptions& options = {});
/// Scores one pair in the same way: sacrebleu's sentence_chrf.
double sentence_chrf(std::string_view hypothesis, std::string_view reference,
                     const ChrfOptions& options = {});

/// BLEU of torchmetrics' BLEUScore: 0 to 1; words between white space, no smoothing. It differs from
/// corpus_bleu: punctuation counts as part of its word, and a corpus without a common sequence of four words
/// has 0. Compare it with other figures of torchmetrics only.
double torchmetrics_bleu(std::span<const std::string> hypotheses, std::span<const std::string> references);

/// Edits (insertions, deletions, substitutions) for each code point of the references: torchmetrics'
/// char_error_rate. May exceed 1. Where all references are empty: 0 if the hypotheses are too, else 1
/// (torchmetrics: nan and inf).
double char_error_rate(std::span<const std::string> hypotheses, std::span<const std::string> references);
/// Counts edits for each word between white space instead: torchmetrics' word_error_rate.
double word_error_rate(std::span<const std::string> hypotheses, std::span<const std::string> references);

}  // namespace lockstep::text
