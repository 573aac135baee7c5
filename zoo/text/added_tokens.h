// Tokens that are taken out of a text whole, before its words are split: [MASK] and the like.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool lstrip = false;      ///< also takes the white space before it
  bool rstrip = false;      ///< also takes the white space behind it
  bool normalized = false;  ///< looked for in the normalized text, normalized itself
  bool special = true;
};

/// Finds the leftmost, then longest, of a set of strings. Immutable after the last add(); then thread-safe.
class AddedTokenMatcher {
 public:
  /// `pattern`, not empty, is what is looked for: the content or its normalized form.
  void add(std::string pattern, const AddedToken& token);
  bool empty() const { return patterns_.empty(); }

  /// Calls on_text(std::string_view) and on_token(int32_t id, std::string_view) for the parts of `text` in order.
  template <class OnText, class OnToken>
  void split(std::string_view text, const OnText& on_text, const OnToken& on_token) const {
    size_t done = 0;
    for (size_t from = 0; !patterns_.empty();) {
      const Match match = find(text, from, done);
      if (match.pattern == nullptr) break;
      if (match.begin > done) on_text(text.substr(done, match.begin - done));
      on_token(match.pattern->id, text.substr(match.begin, match.end - match.begin));
      done = match.end;
      from = match.resume;
    }
    if (done < text.size()) on_text(text.substr(done));
  }

 private:
  struct Pattern {
    std::string bytes;
    int32_t id;
    bool lstrip, rstrip;
  };
  struct Match {
    const Pattern* pattern = nullptr;
    size_t begin = 0, end = 0;  // with the white space that the token takes
    size_t resume = 0;          // where the search goes on
  };
  Match find(std::string_view text, size_t from, size_t done) const;

  std::vector<Pattern> patterns_;  // longest first
  std::array<bool, 256> starts_{};
};

}  // namespace lockstep::text
