// What the scores of texts are made of: counts that add up over pairs, and the value of their sums.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text::text_counts {

/// The counts of a score; empty before the first pair.
using Counts = std::vector<double>;

/// A score: add() takes in a pair of UTF-8 texts, value() is of all pairs.
struct Score {
  const char* name;
  void (*add)(std::string_view hypothesis, std::string_view reference, Counts& counts);
  double (*value)(const Counts& counts);
};

extern const Score kBleu, kSentenceBleu, kChrf, kTorchmetricsBleu, kCharErrors, kWordErrors;

/// Score::add, where both texts are UTF-8; otherwise throws ValueError that names the score.
void add_pair(const Score& score, std::string_view hypothesis, std::string_view reference, Counts& counts);

/// Throws ValueError where not every hypothesis has its reference.
void check_sizes(const std::string& score, size_t hypotheses, size_t references);

}  // namespace lockstep::text::text_counts
