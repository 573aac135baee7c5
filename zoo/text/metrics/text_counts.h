// What the scores of texts are made of: counts that add up over pairs, and the value of their sums.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/zoo/text/metrics/text_scores.h"

namespace lockstep::text::text_counts {

/// The counts of a score; empty before the first pair.
using Counts = std::vector<double>;

/// A score: add() takes in a pair of UTF-8 texts, value() is of all pairs.
struct Score {
  std::string name;
  std::function<void(std::string_view hypothesis, std::string_view reference, Counts& counts)> add;
  double (*value)(const Counts& counts);
};

/// Throws ValueError for an unknown tokenizer.
Score bleu_score(const BleuOptions& options);
/// See bleu_score().
Score sentence_bleu_score(const BleuOptions& options);
/// Throws ValueError for a negative word_order.
Score chrf_score(const ChrfOptions& options);
Score torchmetrics_bleu_score();
Score character_error_score();
Score word_error_score();

/// Calls Score::add. Throws ValueError that names the score if a text is not UTF-8.
void add_pair(const Score& score, std::string_view hypothesis, std::string_view reference, Counts& counts);

/// Throws ValueError if not every hypothesis has its reference.
void check_sizes(const std::string& score, size_t hypotheses, size_t references);

}  // namespace lockstep::text::text_counts
