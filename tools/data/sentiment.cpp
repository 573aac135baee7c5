#include "tools/data/sentiment.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/zoo/tables/text_encoding.h"
#include "tools/data/csv_row.h"

namespace lockstep::tools {
namespace {

constexpr std::string_view white_space = " \t\r\n\v\f";

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(white_space);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(white_space) - first + 1);
}

double parse_rating(std::string_view field) {
  double rating = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), rating);
  const bool whole = error == std::errc() && end == field.data() + field.size();
  if (!whole || !std::isfinite(rating)) {
    throw ValueError(fmt::format("the rating '{}' is no number", field));
  }
  return rating;
}

RatedText parse_line(std::string_view line) {
  const size_t first = line.find('\t');
  const size_t second = first == std::string_view::npos ? first : line.find('\t', first + 1);
  if (second == std::string_view::npos) throw ValueError("expected id TAB mean rating TAB text");
  RatedText rated{.id = std::string(trim(line.substr(0, first))),
                  .rating = parse_rating(trim(line.substr(first + 1, second - first - 1))),
                  .text = std::string(trim(tables::to_utf8(line.substr(second + 1))))};
  if (rated.id.empty()) throw ValueError("the id is empty");
  if (rated.text.empty()) throw ValueError("the text is empty");
  return rated;
}

// Equal for texts that differ only in the case of ASCII letters and in white space.
std::string duplicate_key(std::string_view text) {
  std::string key;
  key.reserve(text.size());
  for (const char c : text) {
    if (white_space.find(c) != std::string_view::npos) {
      if (!key.ends_with(' ')) key += ' ';
    } else {
      key += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  return key;
}

}  // namespace

std::vector<RatedText> parse_ratings(std::string_view content, const std::string& name) {
  std::vector<RatedText> ratings;
  int64_t number = 0;
  while (!content.empty()) {
    const size_t end = std::min(content.find('\n'), content.size());
    const auto line = trim(content.substr(0, end));
    content.remove_prefix(std::min(end + 1, content.size()));
    ++number;
    if (line.empty()) continue;
    try {
      ratings.push_back(parse_line(line));
    } catch (const ValueError& error) {
      throw FileError(fmt::format("{}:{}: {}", name, number, error.what()));
    }
  }
  if (ratings.empty())
    throw FileError(fmt::format("{} is empty: expected lines of id TAB mean rating TAB text", name));
  return ratings;
}

Split split_of(std::string_view document) {
  switch (XXH3_64bits(document.data(), document.size()) % 10) {
    case 8:
      return Split::validation;
    case 9:
      return Split::test;
    default:
      return Split::train;
  }
}

std::string document_of(std::string_view source, std::string_view id) {
  return fmt::format("{}-{}", source, id.substr(0, id.find('_')));
}

SentimentCorpus::SentimentCorpus(double min_rating) : min_rating_(min_rating) {
  if (!(min_rating > 0)) {
    throw ValueError(
        fmt::format("min-rating is {}; expected a number above 0, for a rating of 0 is neither positive "
                    "nor negative",
                    min_rating));
  }
}

void SentimentCorpus::add(const std::string& source, const std::vector<RatedText>& ratings) {
  for (const auto& rated : ratings) {
    if (std::abs(rated.rating) < min_rating_) {
      ++neutral_;
      continue;
    }
    if (!seen_.insert(duplicate_key(rated.text)).second) {
      ++duplicates_;
      continue;
    }
    auto document = document_of(source, rated.id);
    auto& examples = splits_[static_cast<size_t>(split_of(document))];
    examples.push_back({rated.text, rated.rating > 0, source, std::move(document)});
  }
}

const std::vector<SentimentExample>& SentimentCorpus::split(Split split) const {
  return splits_[static_cast<size_t>(split)];
}

std::string sentiment_csv(const std::vector<SentimentExample>& examples) {
  std::string csv = csv_row({"text", "label", "source", "document"});
  for (const auto& example : examples) {
    csv +=
        csv_row({example.text, example.positive ? "positive" : "negative", example.source, example.document});
  }
  return csv;
}

}  // namespace lockstep::tools
