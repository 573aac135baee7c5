#include "lockstep/cli/nearest.h"

#include <algorithm>
#include <numeric>

namespace lockstep {
namespace {

/// Edits that turn `text` into `word` or into a beginning of it, whichever takes fewer.
size_t distance_to_beginning(std::string_view text, std::string_view word) {
  std::vector<size_t> row(word.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= text.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 1; j <= word.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (text[i - 1] == word[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return *std::min_element(row.begin(), row.end());
}

/// Whether `text` is one or more whole parts of `word`, whose parts have dashes between.
bool is_part(const std::string& text, const std::string& word) {
  return ("-" + word + "-").find("-" + text + "-") != std::string::npos;
}

}  // namespace

std::string nearest_word(std::string_view text, const std::vector<std::string>& words) {
  std::string wanted(text.substr(0, text.find('=')));
  wanted.erase(0, std::min(wanted.find_first_not_of('-'), wanted.size()));
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  if (wanted.size() < 2) return {};
  std::string best;
  size_t best_distance = wanted.size() / 3 + 1;
  for (const std::string& word : words) {
    const size_t distance = distance_to_beginning(wanted, word);
    if (distance < best_distance) {
      best = word;
      best_distance = distance;
    }
  }
  if (!best.empty()) return best;
  const auto part = std::find_if(words.begin(), words.end(),
                                 [&](const std::string& word) { return is_part(wanted, word); });
  return part == words.end() ? std::string() : *part;
}

std::string one_of(const std::vector<std::string>& words) {
  std::string list;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) list += i + 1 == words.size() ? " or " : ", ";
    list += words[i];
  }
  return list;
}

}  // namespace lockstep
