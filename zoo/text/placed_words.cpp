#include "lockstep/zoo/text/placed_words.h"

#include "lockstep/zoo/text/utf8.h"

namespace lockstep::text {

void PlacedWordEncoder::begin_char() {
  if (chars_++ == 0) whole_.begin = from_.begin;
  whole_.end = from_.end;
}

void PlacedWordEncoder::word_bytes(const CharTable& table, const char* bytes, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    made_from(bytes + i, bytes + i + 1);
    word_char(static_cast<unsigned char>(table.ascii_word(bytes[i])));
  }
}

void PlacedWordEncoder::word_char(char32_t code) {
  begin_char();
  if (chars_ > max_chars_) return;
  append_code_point(word_, code);
  spans_.resize(word_.size(), from_);
}

void PlacedWordEncoder::punctuation(char32_t code) {
  end_word();
  word_char(code);
  end_word();
}

void PlacedWordEncoder::end_word() {
  if (chars_ > max_chars_) {
    tokens_.add(model_.unk_id(), whole_);
  } else {
    ends_.clear();
    model_.append_pieces(word_, tokens_.ids, ends_);
    size_t begin = 0;
    for (const size_t end : ends_) {
      tokens_.spans.push_back({.begin = spans_[begin].begin, .end = spans_[end - 1].end});
      begin = end;
    }
  }
  word_.clear();
  spans_.clear();
  chars_ = 0;
}

void PlacedTextWriter::word_bytes(const CharTable& table, const char* bytes, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    made_from(bytes + i, bytes + i + 1);
    add(static_cast<unsigned char>(table.ascii_word(bytes[i])));
  }
}

void PlacedTextWriter::add(char32_t code) {
  append_code_point(text_, code);
  spans_.resize(text_.size(), from_);
}

}  // namespace lockstep::text
