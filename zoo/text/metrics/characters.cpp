#include "lockstep/zoo/text/metrics/characters.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/zoo/text/char_table.h"
#include "lockstep/zoo/text/utf8.h"

namespace lockstep::text::text_counts {
namespace {

struct MetricRange {
  uint32_t first, last;
};

#include "lockstep/zoo/text/tables/metric_characters.inc"

bool contains(std::span<const MetricRange> ranges, char32_t code) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), code,
                       [](char32_t value, const MetricRange& range) { return value < range.first; });
  return after != ranges.begin() && code <= (after - 1)->last;
}

constexpr char32_t kCapitalSigma = 0x3A3, kSmallSigma = 0x3C3, kFinalSigma = 0x3C2;

/// Whether the first character that is not ignored is cased.
template <class Iterator>
bool meets_cased(Iterator from, Iterator to) {
  const auto found = std::find_if(from, to, [](char32_t code) { return !contains(kCaseIgnorable, code); });
  return found != to && contains(kCased, *found);
}

}  // namespace

Category category(char32_t code) {
  if (contains(kNumbers, code)) return Category::number;
  if (contains(kPunctuationMarks, code)) return Category::punctuation;
  return contains(kSymbols, code) ? Category::symbol : Category::other;
}

bool is_python_word(char32_t code) { return contains(kPythonWord, code); }

std::string lower(std::string_view text) {
  static const CharTable& table = CharTable::get(
      {.clean_text = false, .tokenize_chinese_chars = false, .strip_accents = false, .lowercase = true});
  std::vector<char32_t> codes;
  for (const char *at = text.data(), *const end = at + text.size(); at != end;)
    codes.push_back(next_code_point(at));
  std::string lowered;
  lowered.reserve(text.size());
  for (auto code = codes.begin(); code != codes.end(); ++code) {
    if (*code == kCapitalSigma) {
      const bool is_final =
          meets_cased(std::make_reverse_iterator(code), codes.rend()) && !meets_cased(code + 1, codes.end());
      append_code_point(lowered, is_final ? kFinalSigma : kSmallSigma);
      continue;
    }
    const CharEntry entry = table[*code];
    if (entry.kind != CharKind::sequence) {
      append_code_point(lowered, entry.code);
    } else {
      for (const char32_t part : table.sequence(entry.code)) append_code_point(lowered, part);
    }
  }
  return lowered;
}

}  // namespace lockstep::text::text_counts
