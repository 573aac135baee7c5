#include "lockstep/zoo/text/word_split.h"

#include <algorithm>
#include <vector>

namespace lockstep::text {
namespace {

struct CodeRange {
  uint32_t first, last;
};

#include "lockstep/zoo/text/tables/word_characters.inc"

std::vector<CharClass> classes() {
  std::vector<CharClass> table(0x110000, CharClass::punctuation);
  const auto fill = [&](const CodeRange& range, CharClass to) {
    std::fill(table.begin() + range.first, table.begin() + range.last + 1, to);
  };
  for (const CodeRange& range : kWordCharacters) fill(range, CharClass::word);
  for (const CodeRange& range : kSpaces) fill(range, CharClass::space);
  return table;
}

}  // namespace

CharClass char_class(char32_t code) {
  static const std::vector<CharClass> table = classes();
  return table[code];
}

}  // namespace lockstep::text
