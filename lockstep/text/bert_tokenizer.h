// BERT's WordPiece tokenizer, equal id for id to Hugging Face's fast one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

struct Encoding {
  std::vector<int64_t> input_ids;       ///< [CLS] A [SEP] or [CLS] A [SEP] B [SEP], not padded
  std::vector<int64_t> token_type_ids;  ///< 0 for the first segment, 1 for the second; same length
};

struct BertTokenizerOptions {
  bool do_lower_case = true;            ///< false for cased models
  std::optional<bool> strip_accents{};  ///< default: as do_lower_case
  bool tokenize_chinese_chars = true;
};

/// Immutable after construction: any number of threads may encode with one tokenizer.
class BertTokenizer {
 public:
  /// From vocab.txt (line number = id) or tokenizer.json (whose own settings then win over `options`).
  /// Throws FileError naming file and line.
  static BertTokenizer from_file(const std::filesystem::path& path, BertTokenizerOptions options = {});
  /// From a model directory: tokenizer.json, else vocab.txt with tokenizer_config.json's settings.
  static BertTokenizer from_directory(const std::filesystem::path& directory);

  BertTokenizer(BertTokenizer&&) noexcept;
  BertTokenizer& operator=(BertTokenizer&&) noexcept;
  ~BertTokenizer();

  /// Truncates to `max_length` tokens, special ones included (longest_first for pairs); 0: no limit.
  Encoding encode(std::string_view text, std::optional<std::string_view> text_pair = std::nullopt,
                  size_t max_length = 0) const;

  int64_t vocab_size() const;
  int64_t pad_token_id() const;
  /// Writes vocab.txt, tokenizer.json and tokenizer_config.json, so that transformers' AutoTokenizer loads
  /// them.
  void save(const std::filesystem::path& directory) const;

 private:
  struct Impl;
  explicit BertTokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::text
