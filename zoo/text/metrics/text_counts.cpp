#include "lockstep/zoo/text/metrics/text_counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/zoo/text/metrics/characters.h"
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

/// Splits a text as sacrebleu's tokenizer of that name.
std::function<Units(std::string_view)> splitter(const std::string& score, const std::string& tokenize) {
  if (tokenize == "13a") return [](std::string_view text) { return words_of(tokenize_13a(text)); };
  if (tokenize == "intl") return [](std::string_view text) { return words_of(tokenize_intl(text)); };
  if (tokenize == "char") return [](std::string_view text) { return Units(split_characters(text), " "); };
  if (tokenize == "none") return words_of;
  throw ValueError(fmt::format("{}: tokenize is \"{}\"; it may be 13a, intl, char or none", score, tokenize));
}

std::function<void(std::string_view, std::string_view, Counts&)> add_tokenized_words(
    const std::string& score, const BleuOptions& options) {
  return [split = splitter(score, options.tokenize), lowercase = options.lowercase](
             std::string_view hypothesis, std::string_view reference, Counts& counts) {
    if (lowercase) {
      add_words(split(lower(hypothesis)), split(lower(reference)), counts);
    } else {
      add_words(split(hypothesis), split(reference), counts);
    }
  };
}

void add_plain_words(std::string_view hypothesis, std::string_view reference, Counts& counts) {
  add_words(words_of(hypothesis), words_of(reference), counts);
}

double compute_sacrebleu(const Counts& counts, bool effective_order) {
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

double corpus_bleu_of(const Counts& counts) { return compute_sacrebleu(counts, false); }
double sentence_bleu_of(const Counts& counts) { return compute_sacrebleu(counts, true); }

double compute_torchmetrics_bleu(const Counts& counts) {
  if (counts.empty()) return 0;
  double sum = 0;
  for (size_t order = 1; order <= kWordOrders; ++order) {
    if (counts[2 * order] == 0) return 0;
    sum += std::log(counts[2 * order] / counts[2 * order + 1]);
  }
  const double brevity = counts[0] > counts[1] ? 1 : std::exp(1 - counts[1] / counts[0]);
  return brevity * std::exp(sum / kWordOrders);
}

// chrF, for 1 to 6 characters, then for 1 to word_order words: sequences of the hypotheses (where the reference has
// any), of the references, of both.
constexpr size_t kCharacterOrders = 6;

void add_sequences(const Units& ours, const Units& right, size_t orders, size_t at, Counts& counts) {
  for (size_t order = 1; order <= orders; ++order, at += 3) {
    if (right.sequences(order) != 0) counts[at] += static_cast<double>(ours.sequences(order));
    counts[at + 1] += static_cast<double>(right.sequences(order));
    counts[at + 2] += common_sequences(ours, right, order);
  }
}

void add_chrf_sequences(std::string_view hypothesis, std::string_view reference, size_t word_orders,
                        Counts& counts) {
  counts.resize(3 * (kCharacterOrders + word_orders));
  add_sequences(Units(split_characters(hypothesis), ""), Units(split_characters(reference), ""),
                kCharacterOrders, 0, counts);
  if (word_orders == 0) return;
  add_sequences(Units(split_off_punctuation(hypothesis), " "), Units(split_off_punctuation(reference), " "),
                word_orders, 3 * kCharacterOrders, counts);
}

double compute_chrf(const Counts& counts) {
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

double compute_error_rate(const Counts& counts) {
  if (counts.empty()) return 0;
  if (counts[1] == 0) return counts[0] == 0 ? 0 : 1;
  return counts[0] / counts[1];
}

}  // namespace

Score bleu_score(const BleuOptions& options) {
  std::string name = options.name.empty() ? "bleu" : options.name;
  auto add = add_tokenized_words(name, options);
  return {std::move(name), std::move(add), corpus_bleu_of};
}

Score sentence_bleu_score(const BleuOptions& options) {
  std::string name = options.name.empty() ? "sentence_bleu" : options.name;
  auto add = add_tokenized_words(name, options);
  return {std::move(name), std::move(add), sentence_bleu_of};
}

Score chrf_score(const ChrfOptions& options) {
  std::string name = !options.name.empty()
                         ? options.name
                         : "chrf2" + std::string(std::clamp<int64_t>(options.word_order, 0, 2), '+');
  if (options.word_order < 0) {
    throw ValueError(fmt::format("{}: word_order is {}; it must be 0 or more", name, options.word_order));
  }
  const auto orders = static_cast<size_t>(options.word_order);
  auto add = [orders, lowercase = options.lowercase](std::string_view hypothesis, std::string_view reference,
                                                     Counts& counts) {
    if (lowercase) {
      add_chrf_sequences(lower(hypothesis), lower(reference), orders, counts);
    } else {
      add_chrf_sequences(hypothesis, reference, orders, counts);
    }
  };
  return {std::move(name), std::move(add), compute_chrf};
}

Score torchmetrics_bleu_score() { return {"torchmetrics_bleu", add_plain_words, compute_torchmetrics_bleu}; }
Score character_error_score() { return {"cer", add_character_edits, compute_error_rate}; }
Score word_error_score() { return {"wer", add_word_edits, compute_error_rate}; }

void add_pair(const Score& score, std::string_view hypothesis, std::string_view reference, Counts& counts) {
  const auto check = [&](const char* what, std::string_view bytes) {
    const size_t at = text::find_invalid_utf8(bytes);
    if (at == std::string_view::npos) return;
    throw ValueError(
        fmt::format("{}: the {} is not UTF-8: byte {} breaks it; convert it first", score.name, what, at));
  };
  check("hypothesis", hypothesis);
  check("reference", reference);
  score.add(hypothesis, reference, counts);
}

void check_sizes(const std::string& score, size_t hypotheses, size_t references) {
  if (hypotheses == references) return;
  throw ValueError(
      fmt::format("{}: there are {} hypotheses and {} references; each hypothesis needs its reference", score,
                  hypotheses, references));
}

}  // namespace lockstep::text::text_counts
