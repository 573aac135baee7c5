#include "lockstep/zoo/text/added_tokens.h"

#include <algorithm>

#include "lockstep/zoo/text/char_table.h"

namespace lockstep::text {

void AddedTokenMatcher::add(std::string pattern, const AddedToken& token) {
  if (pattern.empty()) return;  // nothing is left of it after normalizing: no text has it
  starts_[static_cast<unsigned char>(pattern[0])] = true;
  patterns_.push_back({std::move(pattern), token.id, token.lstrip, token.rstrip});
  std::stable_sort(patterns_.begin(), patterns_.end(),
                   [](const Pattern& a, const Pattern& b) { return a.bytes.size() > b.bytes.size(); });
}

AddedTokenMatcher::Match AddedTokenMatcher::find(std::string_view text, size_t from, size_t done) const {
  for (size_t at = from; at < text.size(); ++at) {
    if (!starts_[static_cast<unsigned char>(text[at])]) continue;
    const std::string_view rest = text.substr(at);
    for (const Pattern& pattern : patterns_) {
      if (!rest.starts_with(pattern.bytes)) continue;
      Match match{&pattern, at, at + pattern.bytes.size(), at + pattern.bytes.size()};
      if (pattern.lstrip) match.begin = std::max(trailing_space(text.substr(0, at)), done);
      if (pattern.rstrip) match.end += leading_space(text.substr(match.end));
      return match;
    }
  }
  return {};
}

}  // namespace lockstep::text
