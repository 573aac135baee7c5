// What the tokenizer does with each code point: normalization and word splitting in one look-up.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep::text {

/// The switches of Hugging Face's BertNormalizer.
struct NormalizerOptions {
  bool clean_text = true;              ///< drop control characters, make white space a space
  bool tokenize_chinese_chars = true;  ///< set CJK ideographs apart
  bool strip_accents = true;           ///< decompose (NFD), then drop nonspacing marks
  bool lowercase = true;               ///< per character, after stripping
};

enum class CharKind : uint8_t {
  word,          ///< part of a word
  drop,          ///< vanishes without a trace
  drop_starter,  ///< vanishes, but marks are not sorted across it
  space,         ///< ends a word
  punctuation,   ///< a word of its own
  chinese,       ///< a word of its own, set apart before the words are split
  hangul,        ///< a syllable to decompose by formula
  sequence,      ///< becomes several characters of a word
  mark,          ///< part of a word; neighboring marks are sorted by combining class
};

struct CharEntry {
  CharKind kind;
  char32_t code;  ///< what the code point becomes; for `sequence` the index for CharTable::sequence
};

/// Immutable; equal for every code point to the peer's normalizer and pre-tokenizer (tables/generate.py).
class CharTable {
 public:
  /// The table for `options`: built on first use, then shared. Thread-safe.
  static const CharTable& get(NormalizerOptions options);

  CharEntry operator[](char32_t code) const {
    const uint32_t packed = blocks_[block_of_[code >> kBlockBits] << kBlockBits | (code & (kBlockSize - 1))];
    const uint32_t becomes = packed >> 8;
    return {static_cast<CharKind>(packed & 0xFF), becomes == 0 ? code : becomes};
  }

  /// For an ASCII byte that is part of a word: what it becomes; 0 for every other byte.
  char ascii_word(char byte) const { return ascii_word_[static_cast<unsigned char>(byte)]; }

  std::span<const char32_t> sequence(char32_t index) const {
    return {&sequences_[index + 1], sequences_[index]};
  }

 private:
  static constexpr unsigned kBlockBits = 8;
  static constexpr uint32_t kBlockSize = 1u << kBlockBits;

  explicit CharTable(NormalizerOptions options);
  void fill(uint32_t first, uint32_t last, CharKind kind);
  void set(char32_t code, CharKind kind, char32_t becomes);
  void set_output(char32_t code, std::span<const char32_t> output);
  uint32_t uniform_block(uint32_t packed);
  uint32_t& slot(char32_t code);

  std::vector<uint32_t> block_of_;      // by code >> kBlockBits
  std::vector<uint32_t> blocks_;        // code << 8 | kind; code 0: unchanged
  std::vector<char32_t> sequences_{0};  // length, then so many code points; index 0 is none
  std::array<char, 256> ascii_word_{};
  // Blocks that several ranges share because all their entries are equal; copied before one is changed.
  std::vector<uint32_t> shared_blocks_;
};

/// Canonical combining class of a code point whose kind is `mark`.
int mark_class(char32_t code);

/// Offset of the white space at the end of `text` (its size when there is none).
size_t trailing_space(std::string_view text);
/// Size of the white space at the start of `text`.
size_t leading_space(std::string_view text);

}  // namespace lockstep::text
