// How close texts are to reference texts: BLEU, chrF, error rates. Plain functions, without tensors or ranks.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep::text {

/// Which text to give: BLEU and chrF are for running text as people write it. Give detokenized sentences, not
/// words joined by spaces: sacrebleu's 13a splits words itself. torchmetrics_bleu and the error rates split at
/// white space only. All of them distinguish case. Texts are UTF-8; otherwise they throw ValueError, also where
/// there are more hypotheses than references or fewer. Over no text at all they are 0. Thread-safe.

/// sacrebleu's corpus_bleu with one reference: 0 to 100; words by 13a, up to 4 of them, exponential smoothing.
double corpus_bleu(std::span<const std::string> hypotheses, std::span<const std::string> references);
/// sacrebleu's sentence_bleu: the same of one pair, but only orders that the hypothesis is long enough for.
double sentence_bleu(std::string_view hypothesis, std::string_view reference);

/// sacrebleu's corpus_chrf, chrF2: 0 to 100; 1 to 6 characters without white space, recall counts twice.
double corpus_chrf(std::span<const std::string> hypotheses, std::span<const std::string> references);
/// Scores one pair in the same way: sacrebleu's sentence_chrf.
double sentence_chrf(std::string_view hypothesis, std::string_view reference);

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
