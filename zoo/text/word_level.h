// A tokenizer of whole words, made from texts: Hugging Face's WordLevel, equal id for id and file for file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

/// Names and meanings are those of tokenizers' WordLevelTrainer.
struct TrainWordLevelOptions {
  size_t vocab_size = 30'000;  ///< at most, special tokens included
  size_t min_frequency = 2;    ///< rarer words are unknown; tokenizers' own default is 0
  /// Get the ids 0, 1, ... in this order.
  std::vector<std::string> special_tokens = {"[UNK]", "[PAD]", "[SOS]", "[EOS]"};
  std::string unk_token = "[UNK]";  ///< one of special_tokens
};

/// Splits a text by `\w+|[^\w\s]+` (tokenizers' Whitespace) and gives every word the id that it has in the
/// vocabulary, or that of the unknown token. Nothing is normalized: case counts. Immutable after construction:
/// any number of threads may use one tokenizer.
class WordLevelTokenizer {
 public:
  /// Special tokens, then the words of `texts`, most frequent first and in the order of their bytes where
  /// equally frequent: what tokenizers' WordLevelTrainer gives. Throws ValueError for a text that
  /// is not UTF-8, a special token that is empty or named twice, an unk_token that is none of them, or a
  /// vocab_size too small for them.
  static WordLevelTokenizer train(std::span<const std::string> texts,
                                  const TrainWordLevelOptions& options = {});
  /// From tokenizer.json. Throws FileError naming file and field, also for what this tokenizer does not do: a
  /// normalizer, truncation, padding, a post_processor, a decoder, another pre_tokenizer than Whitespace.
  static WordLevelTokenizer from_file(const std::filesystem::path& path);

  /// The tokenizer that was moved from can only be destroyed or assigned to.
  WordLevelTokenizer(WordLevelTokenizer&&) noexcept;
  /// The tokenizer that was moved from can only be destroyed or assigned to.
  WordLevelTokenizer& operator=(WordLevelTokenizer&&) noexcept;
  ~WordLevelTokenizer();

  /// The ids of `text`, UTF-8. Adds no special tokens; those that stand in the text literally become their ids.
  /// Throws ValueError when the text is not UTF-8.
  std::vector<int64_t> encode(std::string_view text) const;
  /// The tokens of `ids` with a space between them. Ids without a token are left out, with
  /// `skip_special_tokens` special tokens too.
  std::string decode(std::span<const int64_t> ids, bool skip_special_tokens = true) const;

  /// One more than the highest id: the rows that a model's embedding needs.
  int64_t vocab_size() const;
  /// The id of a word or a special token; nothing for one that is not in the vocabulary.
  std::optional<int64_t> token_to_id(std::string_view token) const;
  /// The token of an id; nothing for an id without one.
  std::optional<std::string> id_to_token(int64_t id) const;

  /// Writes tokenizer.json, byte for byte as tokenizers' Tokenizer.save() does. Makes the directory when it is
  /// missing. Atomic; throws FileError.
  void save(const std::filesystem::path& path) const;

 private:
  struct Impl;
  explicit WordLevelTokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::text
