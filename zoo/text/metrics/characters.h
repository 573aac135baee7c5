// What the peers' scores ask about characters: Unicode's categories, words, lower case.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::text::text_counts {

enum class Category { number, punctuation, symbol, other };

/// The category of `code` as the package regex has it (tables/generate.py).
Category category(char32_t code);

/// Whether Python's string.punctuation has it.
constexpr bool is_ascii_punctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

/// Whether \w of Python's re matches `code`.
bool is_python_word(char32_t code);

/// Python's str.lower() of a valid UTF-8 text: a capital sigma at the end of a word becomes a final one.
std::string lower(std::string_view text);

}  // namespace lockstep::text::text_counts
