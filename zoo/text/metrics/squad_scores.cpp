#include "lockstep/zoo/text/metrics/squad_scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/zoo/text/metrics/characters.h"
#include "lockstep/zoo/text/metrics/text_words.h"
#include "lockstep/zoo/text/utf8.h"

namespace lockstep::text {
namespace {

using text_counts::split_words;

/// Words are what \w+ of Python's re matches.
std::string without_articles(std::string_view text) {
  std::string kept;
  const char* at = text.data();
  const char* const end = at + text.size();
  const char* word = at;  // begin of the current one
  const auto end_word = [&](const char* here) {
    const std::string_view found(word, static_cast<size_t>(here - word));
    kept += found == "a" || found == "an" || found == "the" ? std::string_view(" ") : found;
  };
  while (at != end) {
    const char* const here = at;
    if (text_counts::is_python_word(next_code_point(at))) continue;
    end_word(here);
    kept.append(here, at);
    word = at;
  }
  end_word(end);
  return kept;
}

double word_f1(const std::string& prediction, const std::string& answer, SquadVersion version) {
  const auto found = split_words(prediction), right = split_words(answer);
  if (version == SquadVersion::v2 && (found.empty() || right.empty())) return found == right ? 1 : 0;
  std::map<std::string_view, int> left;
  for (const auto word : right) ++left[word];
  double common = 0;
  for (const auto word : found) {
    if (left[word]-- > 0) ++common;
  }
  return common == 0 ? 0 : 2 * common / static_cast<double>(found.size() + right.size());
}

void check_utf8(const char* what, std::string_view bytes) {
  const size_t at = find_invalid_utf8(bytes);
  if (at == std::string_view::npos) return;
  throw ValueError(
      fmt::format("score_answer: the {} is not UTF-8: byte {} breaks it; convert it first", what, at));
}

}  // namespace

std::string normalize_answer(std::string_view answer) {
  std::string text = text_counts::lower(answer);
  std::erase_if(text, text_counts::is_ascii_punctuation);
  text = without_articles(text);
  std::string normalized;
  for (const auto word : split_words(text)) (normalized += normalized.empty() ? "" : " ") += word;
  return normalized;
}

AnswerScore score_answer(std::string_view prediction, std::span<const std::string> answers,
                         SquadVersion version) {
  check_utf8("prediction", prediction);
  std::vector<std::string> right;
  for (const auto& answer : answers) {
    check_utf8("answer", answer);
    std::string normalized = normalize_answer(answer);
    if (version == SquadVersion::v1 || !normalized.empty()) right.push_back(std::move(normalized));
  }
  if (version == SquadVersion::v2 && right.empty()) right.emplace_back();
  const std::string found = normalize_answer(prediction);
  AnswerScore best;
  for (const auto& answer : right) {
    best.exact = std::max(best.exact, found == answer ? 1.0 : 0.0);
    best.f1 = std::max(best.f1, word_f1(found, answer, version));
  }
  return best;
}

}  // namespace lockstep::text
