// Words as pieces of which each knows where it stands in the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/zoo/text/char_table.h"
#include "lockstep/zoo/text/word_piece.h"

namespace lockstep::text {

/// Bytes of a text.
struct ByteSpan {
  size_t begin = 0;
  size_t end = 0;  ///< behind the last one
};

/// Tokens and their bytes in the text.
struct PlacedTokens {
  std::vector<int64_t> ids{};
  std::vector<ByteSpan> spans{};

  void add(int64_t id, ByteSpan span) {
    ids.push_back(id);
    spans.push_back(span);
  }
};

/// Where the characters of a text that is walked come from: they lie in the text itself, or in one that was made of it.
class Origins {
 public:
  /// The walked texts are parts of `text`.
  explicit Origins(std::string_view text) : base_(text.data()) {}
  /// The walked texts are parts of `made`, each byte of which is made from a span of another text.
  Origins(std::string_view made, const std::vector<ByteSpan>& spans) : base_(made.data()), spans_(&spans) {}

  /// `begin` and `end`, of a walked text, are different.
  ByteSpan span(const char* begin, const char* end) const {
    const auto first = static_cast<size_t>(begin - base_), behind = static_cast<size_t>(end - base_);
    if (spans_ == nullptr) return {.begin = first, .end = behind};
    return {.begin = (*spans_)[first].begin, .end = (*spans_)[behind - 1].end};
  }

 private:
  const char* base_;
  const std::vector<ByteSpan>* spans_ = nullptr;
};

/// Sink of walk_characters: appends the pieces of each word with their places. One for each text that is walked.
class PlacedWordEncoder {
 public:
  PlacedWordEncoder(const WordPiece& model, size_t max_chars, const Origins& origins, PlacedTokens& tokens)
      : model_(model), max_chars_(max_chars), origins_(origins), tokens_(tokens) {}

  void made_from(const char* begin, const char* end) { from_ = origins_.span(begin, end); }
  void word_bytes(const CharTable& table, const char* bytes, size_t n);
  void word_char(char32_t code);
  void space(char32_t) { end_word(); }
  void punctuation(char32_t code);
  void end_word();
  bool full() const { return false; }

 private:
  void begin_char();

  const WordPiece& model_;
  const size_t max_chars_;
  const Origins& origins_;
  PlacedTokens& tokens_;
  ByteSpan from_{};                // of the next character
  std::string word_{};             // no more than max_chars_ characters
  std::vector<ByteSpan> spans_{};  // of each byte of word_
  std::vector<size_t> ends_{};     // of the word's pieces
  ByteSpan whole_{};               // of the word
  size_t chars_ = 0;
};

/// Sink of walk_characters: the normalized text, and what each of its bytes is made from.
class PlacedTextWriter {
 public:
  explicit PlacedTextWriter(const Origins& origins) : origins_(origins) {}

  void made_from(const char* begin, const char* end) { from_ = origins_.span(begin, end); }
  void word_bytes(const CharTable& table, const char* bytes, size_t n);
  void word_char(char32_t code) { add(code); }
  void space(char32_t code) { add(code); }
  void punctuation(char32_t code) { add(code); }
  bool full() const { return false; }

  const std::string& text() const { return text_; }
  const std::vector<ByteSpan>& spans() const { return spans_; }

 private:
  void add(char32_t code);

  const Origins& origins_;
  ByteSpan from_{};
  std::string text_{};
  std::vector<ByteSpan> spans_{};
};

}  // namespace lockstep::text
