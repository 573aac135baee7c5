// BERT's WordPiece tokenizer, equal id for id to Hugging Face's fast one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

/// The ids of a text or of a pair of texts.
struct Encoding {
  std::vector<int64_t> input_ids;       ///< [CLS] A [SEP] or [CLS] A [SEP] B [SEP], not padded
  std::vector<int64_t> token_type_ids;  ///< 0 for the first segment, 1 for the second; same length
};

/// Characters of a text: Unicode code points from 0, as Python counts them.
struct CharSpan {
  int64_t begin = 0;                                 ///< the first one
  int64_t end = 0;                                   ///< behind the last one
  bool operator==(const CharSpan&) const = default;  ///< of both places
};

/// The tokens of a text, without special ones around them.
struct TextTokens {
  std::vector<int64_t> ids;     ///< of the tokens
  std::vector<CharSpan> spans;  ///< where each stands in the text
};

/// The ids of a text whose words are known.
struct WordsEncoding {
  static constexpr int64_t kNoWord = -1;  ///< the word of [CLS] and [SEP]
  Encoding encoding;                      ///< [CLS] words [SEP], not padded
  std::vector<int64_t> word_ids;          ///< the word that each token is a part of, from 0, or kNoWord
};

/// Names and meanings are those of transformers' BertTokenizer.
struct BertTokenizerOptions {
  bool do_lower_case = true;            ///< false for cased models
  std::optional<bool> strip_accents{};  ///< default: as do_lower_case
  bool tokenize_chinese_chars = true;   ///< every CJK character is a word of its own
};

/// Immutable after construction: any number of threads may encode with one tokenizer.
class BertTokenizer {
 public:
  /// From vocab.txt (line number from 0 = id) or, when the name ends in .json, tokenizer.json (whose own
  /// settings then win over `options`). Throws FileError naming file and line or field, also when [UNK],
  /// [CLS], [SEP] or [PAD] is missing.
  static BertTokenizer from_file(const std::filesystem::path& path, BertTokenizerOptions options = {});
  /// From a model directory: tokenizer.json, else vocab.txt. Settings that tokenizer_config.json gives win,
  /// as they do for transformers' BertTokenizer, with a warning where they contradict tokenizer.json. Throws
  /// FileError.
  static BertTokenizer from_directory(const std::filesystem::path& directory);

  /// The tokenizer that was moved from can only be destroyed or assigned to.
  BertTokenizer(BertTokenizer&&) noexcept;
  /// The tokenizer that was moved from can only be destroyed or assigned to.
  BertTokenizer& operator=(BertTokenizer&&) noexcept;
  ~BertTokenizer();

  /// The ids of one text or of a pair, UTF-8. Special tokens that stand in a text literally become their ids.
  /// Truncates to `max_length` tokens, special ones included (longest_first for pairs); 0: no limit. Throws
  /// ValueError when a text is not UTF-8 or `max_length` has no room for the special tokens. Thread-safe.
  Encoding encode(std::string_view text, std::optional<std::string_view> text_pair = std::nullopt,
                  size_t max_length = 0) const;

  /// The tokens of a text, UTF-8, and where they stand, as transformers' offset_mapping. Special tokens that stand in the text
  /// literally become their ids; none are added, nothing is cut. Throws ValueError when the text is not UTF-8. Thread-safe.
  /// Only a mark that is newer than the peer's tables may stand elsewhere, if other marks lie beside it.
  TextTokens tokenize(std::string_view text) const;
  /// As transformers' tokenizer with is_split_into_words, and its word_ids(). A word of characters that the tokenizer drops has
  /// no token. Truncates and throws as encode(). Thread-safe.
  WordsEncoding encode_words(std::span<const std::string> words, size_t max_length = 0) const;

  /// One more than the highest id, added tokens included: the rows that a model's embedding needs.
  int64_t vocab_size() const;
  /// The id of [PAD], for PadOptions::pad_token_id.
  int64_t pad_token_id() const;
  /// The id of [CLS].
  int64_t cls_token_id() const;
  /// The id of [SEP].
  int64_t sep_token_id() const;
  /// Writes vocab.txt, tokenizer.json and tokenizer_config.json, so that transformers' AutoTokenizer loads
  /// them and gives the same ids. Makes `directory` when it is missing. Throws FileError.
  void save(const std::filesystem::path& directory) const;
  /// What save() writes: texts by file name.
  std::map<std::string, std::string> files() const;

 private:
  struct Impl;
  explicit BertTokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::text
