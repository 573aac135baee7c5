// Words as the pre-tokenizer Whitespace of Hugging Face's tokenizers splits them: \w+|[^\w\s]+.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/zoo/text/utf8.h"

namespace lockstep::text {

enum class CharClass : uint8_t {
  punctuation,  ///< everything that is neither of the others; a run of it is a word
  word,         ///< letters, marks, digits, connectors such as _
  space,
};

/// Equal to the peer for every code point (tables/generate.py).
CharClass char_class(char32_t code);

/// Calls on_word(std::string_view) for the words of `text`, which must be valid UTF-8, in order. They are parts
/// of `text`.
template <class OnWord>
void for_each_word(std::string_view text, const OnWord& on_word) {
  const char* at = text.data();
  const char* const end = at + text.size();
  const char* begin = at;
  CharClass current = CharClass::space;
  while (at != end) {
    const char* const here = at;
    const CharClass next = char_class(next_code_point(at));
    if (next == current) continue;
    if (current != CharClass::space) on_word(std::string_view(begin, static_cast<size_t>(here - begin)));
    begin = here;
    current = next;
  }
  if (current != CharClass::space) on_word(std::string_view(begin, static_cast<size_t>(end - begin)));
}

}  // namespace lockstep::text
