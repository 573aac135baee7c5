// One pass over a text: normalization and the characters of its words, handed to a sink.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "lockstep/zoo/text/char_table.h"
#include "lockstep/zoo/text/utf8.h"

namespace lockstep::text {

/// Hands the normalized characters of `text` (valid UTF-8) to `sink`, which has
///   void word_bytes(const CharTable&, const char* bytes, size_t n)  ASCII, each to be mapped by ascii_word
///   void word_char(char32_t)     part of the current word
///   void space(char32_t)         ends the current word
///   void punctuation(char32_t)   ends the current word and is one
///   bool full() const            nothing more is wanted
/// and may have
///   void made_from(const char* begin, const char* end)  which bytes of `text` the next character is made from
template <class Sink>
void walk_characters(const CharTable& table, std::string_view text, Sink& sink) {
  const auto made_from = [&](const char* begin, const char* end) {
    if constexpr (requires { sink.made_from(begin, end); }) sink.made_from(begin, end);
  };
  // Marks since the last starter, with their classes; empty but for scripts newer than the peer's tables.
  struct Mark {
    int combining_class;
    char32_t code;
  };
  struct Origin {
    const char *begin, *end;
  };
  std::vector<Mark> marks;
  std::vector<Origin>
      origins;  // of the marks, in the text's order: sorting moves characters only, as in the peer
  const auto end_marks = [&] {
    if (marks.empty()) return;
    std::stable_sort(marks.begin(), marks.end(),
                     [](auto& a, auto& b) { return a.combining_class < b.combining_class; });
    for (size_t i = 0; i < marks.size(); ++i) {
      made_from(origins[i].begin, origins[i].end);
      sink.word_char(marks[i].code);
    }
    marks.clear();
    origins.clear();
  };
  const auto add_mark = [&](int combining_class, char32_t code, const char* begin, const char* end) {
    marks.push_back({combining_class, code});
    origins.push_back({begin, end});
  };

  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end && !sink.full()) {
    const char* ascii = at;
    while (ascii != end && table.ascii_word(*ascii) != 0) ++ascii;
    if (ascii != at) {
      end_marks();
      sink.word_bytes(table, at, static_cast<size_t>(ascii - at));
      at = ascii;
      continue;
    }
    const char* const begin = at;
    const CharEntry entry = table[next_code_point(at)];
    if (entry.kind == CharKind::drop) continue;
    if (entry.kind == CharKind::mark) {
      add_mark(mark_class(entry.code), entry.code, begin, at);
      continue;
    }
    end_marks();
    made_from(begin, at);
    switch (entry.kind) {
      case CharKind::word:
        sink.word_char(entry.code);
        break;
      case CharKind::space:
        sink.space(entry.code);
        break;
      case CharKind::punctuation:
        sink.punctuation(entry.code);
        break;
      case CharKind::chinese:
        sink.space(' ');
        sink.word_char(entry.code);
        sink.space(' ');
        break;
      case CharKind::hangul: {
        constexpr char32_t kLeading = 0x1100, kVowel = 0x1161, kTrailing = 0x11A7;
        const char32_t index = entry.code - 0xAC00;
        sink.word_char(kLeading + index / 588);
        sink.word_char(kVowel + index % 588 / 28);
        if (index % 28 != 0) sink.word_char(kTrailing + index % 28);
        break;
      }
      case CharKind::sequence:
        for (const char32_t code : table.sequence(entry.code)) {
          if (const int combining_class = mark_class(code)) {
            add_mark(combining_class, code, begin, at);
          } else {
            end_marks();
            made_from(begin, at);
            sink.word_char(code);
          }
        }
        break;
      case CharKind::drop_starter:
      case CharKind::drop:
      case CharKind::mark:
        break;
    }
  }
  end_marks();
}

}  // namespace lockstep::text
