#include "lockstep/zoo/text/metrics/text_counts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "lockstep/base/error.h"
#include "lockstep/zoo/text/metrics/text_words.h"
#include "lockstep/zoo/text/utf8.h"

namespace lockstep::text::text_counts {
namespace {

using text::next_code_point;

// A text as a row of units (words or characters). A sequence of units is a part of the text.
struct Units {
  std::string text;
  std::vector<size_t> begins;
  std::vector<size_t> ends;

  explicit Units(const std::vector<std::string_view>& parts, std::string_view between) {
    for (const std::string_view part : parts) {
      if (!text.empty()) text += between;
      begins.push_back(text.size());
      text += part;
      ends.push_back(text.size());
    }
  }
  size_t size() const { return begins.size(); }
  size_t sequences(size_t order) const { return size() < order ? 0 : size() - order + 1; }
  std::string_view sequence(size_t first, size_t order) const {
    const size_t begin = begins[first];
    return std::string_view(text).substr(begin, ends[first + order - 1] - begin);
  }
};

// No word has a space in it, so sequences of words are equal where their texts are.
Units words_of(std::string_view text) { return Units(split_words(text), " "); }

// Without white space.
Units characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  for (const std::string_view word : split_words(text)) {
    for (const char *at = word.data(), *const end = at + word.size(); at != end;) {
      const char* const here = at;
      next_code_point(at);
      characters.emplace_back(here, static_cast<size_t>(at - here));
    }
  }
  return Units(characters, "");
}

// Sequences of `order` units that both have, each as often as the one that has fewer.
double common_sequences(const Units& hypothesis, const Units& reference, size_t order) {
  std::unordered_map<std::string_view, int64_t> left;
  for (size_t i = 0; i < reference.sequences(order); ++i) ++left[reference.sequence(i, order)];
  double common = 0;
  for (size_t i = 0; i < hypothesis.sequences(order); ++i) {
    const auto found = left.find(hypothesis.sequence(i, order));
    if (found == left.end() || found->second == 0) continue;
    --found->second;
    ++common;
  }
  return common;
}

// BLEU: words of the hypotheses, words of the references, then for 1 to 4 words the common and all sequences.
constexpr size_t kWordOrders = 4;

void add_words(const Units& hypothesis, const Units& reference, Counts& counts) {
  counts.resize(2 + 2 * kWordOrders);
  counts[0] += static_cast<double>(hypothesis.size());
  counts[1] += static_cast<double>(reference.size());
  for (size_t order = 1; order <= kWordOrders; ++order) {
    counts[2 * order] += common_sequences(hypothesis, reference, order);
    counts[2 * order + 1] += static_cast<double>(hypothesis.sequences(order));
  }
}

void add_13a_words(std::string_view hypothesis, std::string_view reference, Counts& counts) {
  add_words(words_of(tokenize_13a(hypothesis)), words_of(tokenize_13a(reference)), counts);
}

void add_plain_words(std::string_view hypothesis, std::string_view reference, Counts& counts) {
  add_words(words_of(hypothesis), words_of(reference), counts);
}

double sacrebleu_of(const Counts& counts, bool effective_order) {
  if (counts.empty()) return 0;
  const double words = counts[0], reference_words = counts[1];
  double sum = 0, smoothing = 1;
  size_t orders = kWordOrders;
  bool any = false;
  for (size_t order = 1; order <= kWordOrders; ++order) any |= counts[2 * order] != 0;
  if (!any) return 0;
  for (size_t order = 1; order <= kWordOrders; ++order) {
    const double common = counts[2 * order], all = counts[2 * order + 1];
    if (all == 0) {
      // sacrebleu's logarithm of 0 is -9999999999.
      if (!effective_order) return 0;
      break;
    }
    if (effective_order) orders = order;
    if (common == 0) smoothing *= 2;
    sum += std::log(common == 0 ? 100 / (smoothing * all) : 100 * common / all);
  }
  const double brevity = words < reference_words ? std::exp(1 - reference_words / words) : 1;
  return brevity * std::exp(sum / static_cast<double>(orders));
}

double corpus_bleu_of(const Counts& counts) { return sacrebleu_of(counts, false); }
double sentence_bleu_of(const Counts& counts) { return sacrebleu_of(counts, true); }

double torchmetrics_bleu_of(const Counts& counts) {
  if (counts.empty()) return 0;
  double sum = 0;
  for (size_t order = 1; order <= kWordOrders; ++order) {
    if (counts[2 * order] == 0) return 0;
    sum += std::log(counts[2 * order] / counts[2 * order + 1]);
  }
  const double brevity = counts[0] > counts[1] ? 1 : std::exp(1 - counts[1] / counts[0]);
  return brevity * std::exp(sum / kWordOrders);
}

// chrF, for 1 to 6 characters: sequences of the hypotheses (where the reference has any), of the references, of
// both.
constexpr size_t kCharacterOrders = 6;

void add_characters(std::string_view hypothesis, std::string_view reference, Counts& counts) {
  counts.resize(3 * kCharacterOrders);
  const Units ours = characters_of(hypothesis), right = characters_of(reference);
  for (size_t order = 1; order <= kCharacterOrders; ++order) {
    const size_t at = 3 * (order - 1);
    if (right.sequences(order) != 0) counts[at] += static_cast<double>(ours.sequences(order));
    counts[at + 1] += static_cast<double>(right.sequences(order));
    counts[at + 2] += common_sequences(ours, right, order);
  }
}

double chrf_of(const Counts& counts) {
  constexpr double kBetaSquared = 4;
  double precision = 0, recall = 0, orders = 0;
  for (size_t at = 0; at < counts.size(); at += 3) {
    if (counts[at] == 0 || counts[at + 1] == 0) continue;
    precision += counts[at + 2] / counts[at];
    recall += counts[at + 2] / counts[at + 1];
    ++orders;
  }
  if (precision + recall == 0) return 0;
  precision /= orders;
  recall /= orders;
  return 100 * (1 + kBetaSquared) * precision * recall / (kBetaSquared * precision + recall);
}

// Error rates: edits, units of the references.
template <class Unit>
size_t edit_distance(const std::vector<Unit>& from, const std::vector<Unit>& to) {
  std::vector<size_t> row(to.size() + 1);
  for (size_t j = 0; j <= to.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= from.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= to.size(); ++j) {
      const size_t above = row[j];
      row[j] = from[i - 1] == to[j - 1] ? diagonal : 1 + std::min({diagonal, above, row[j - 1]});
      diagonal = above;
    }
  }
  return row.back();
}

template <class Unit>
void add_edits(const std::vector<Unit>& hypothesis, const std::vector<Unit>& reference, Counts& counts) {
  counts.resize(2);
  counts[0] += static_cast<double>(edit_distance(hypothesis, reference));
  counts[1] += static_cast<double>(reference.size());
}

std::vector<char32_t> code_points(std::string_view text) {
  std::vector<char32_t> codes;
  for (const char *at = text.data(), *const end = at + text.size(); at != end;) {
    codes.push_back(next_code_point(at));
  }
  return codes;
}

void add_character_edits(std::string_view hypothesis, std::string_view reference, Counts& counts) {
  add_edits(code_points(hypothesis), code_points(reference), counts);
}

void add_word_edits(std::string_view hypothesis, std::string_view reference, Counts& counts) {
  add_edits(split_words(hypothesis), split_words(reference), counts);
}

double error_rate_of(const Counts& counts) {
  if (counts.empty()) return 0;
  if (counts[1] == 0) return counts[0] == 0 ? 0 : 1;
  return counts[0] / counts[1];
}

}  // namespace

const Score kBleu = {"bleu", add_13a_words, corpus_bleu_of};
const Score kSentenceBleu = {"sentence_bleu", add_13a_words, sentence_bleu_of};
const Score kChrf = {"chrf2", add_characters, chrf_of};
const Score kTorchmetricsBleu = {"torchmetrics_bleu", add_plain_words, torchmetrics_bleu_of};
const Score kCharErrors = {"cer", add_character_edits, error_rate_of};
const Score kWordErrors = {"wer", add_word_edits, error_rate_of};

void add_pair(const Score& score, std::string_view hypothesis, std::string_view reference, Counts& counts) {
  const auto check = [&](const char* what, std::string_view bytes) {
    const size_t at = text::find_invalid_utf8(bytes);
    if (at == std::string_view::npos) return;
    throw ValueError(std::string(score.name) + ": the " + what + " is not UTF-8: byte " + std::to_string(at) +
                     " breaks it; convert it first");
  };
  check("hypothesis", hypothesis);
  check("reference", reference);
  score.add(hypothesis, reference, counts);
}

void check_sizes(const std::string& score, size_t hypotheses, size_t references) {
  if (hypotheses == references) return;
  throw ValueError(score + ": there are " + std::to_string(hypotheses) + " hypotheses and " +
                   std::to_string(references) + " references; each hypothesis needs its reference");
}

}  // namespace lockstep::text::text_counts
