// A trained translation model and its tokenizers: text in, text out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/zoo/models/transformer/generator.h"
#include "lockstep/zoo/models/transformer/transformer.h"
#include "lockstep/zoo/tasks/sentence_pairs.h"
#include "lockstep/zoo/text/word_level.h"

namespace lockstep::tasks {

/// The languages of a model and their tokenizers. Immutable after construction.
struct TranslationTokenizers {
  std::string source_language;                             ///< as in tokenizer_file_name(), such as "en"
  std::string target_language;                             ///< likewise
  std::filesystem::path source_file;                       ///< where `source` is from; stands in messages
  std::filesystem::path target_file;                       ///< where `target` is from; stands in messages
  std::shared_ptr<const text::WordLevelTokenizer> source;  ///< of the sentences to translate
  std::shared_ptr<const text::WordLevelTokenizer> target;  ///< of the translations
  SpecialTokens special;                                   ///< the same of both

  /// From tokenizer.json files. Throws FileError where they lack special tokens or disagree about their ids.
  static TranslationTokenizers from_files(const std::filesystem::path& source_file,
                                          const std::string& source_language,
                                          const std::filesystem::path& target_file,
                                          const std::string& target_language);
  /// Reads a model directory, whose translation.json names the languages. Throws FileError.
  static TranslationTokenizers from_directory(const std::filesystem::path& directory);
  /// translation.json and the two tokenizers, by name.
  std::map<std::string, std::string> files() const;
  /// Throws FileError that names the tokenizer whose vocabulary is not the model's.
  void check(const models::TransformerConfig& config) const;
};

/// "tokenizer_en.json"
std::string tokenizer_file_name(const std::string& language);

/// Ids of words as text that people read.
std::string text_of(const std::vector<int64_t>& ids, const TranslationTokenizers& tokenizers);

/// What Translator does with a text that has more words than the model takes.
enum class Overlong : uint8_t {
  skip,   ///< its translation is empty
  cut,    ///< its first words are translated, as many as the model takes
  error,  ///< ValueError, and nothing is translated
};

/// How texts are translated.
struct TranslateOptions {
  models::GenerateOptions generate{};  ///< its tokens for start and end are the tokenizers'
  int64_t batch_size = 32;             ///< texts at a time
  Overlong overlong = Overlong::skip;  ///< texts with too many words
};

/// What Translator::translate() returns.
struct Translations {
  std::vector<std::string> texts{};  ///< in the order of the originals; of an empty one empty
  std::vector<size_t> overlong{};    ///< places, from 0, of originals that were skipped or cut
  std::string first_overlong{};      ///< "text 3 has 201 words; the model takes 14"; empty if there is none
};

/// Translates texts with a trained model. One thread at a time.
class Translator {
 public:
  /// Throws FileError where the tokenizers are not the model's.
  Translator(models::Transformer model, TranslationTokenizers tokenizers);
  /// What `translate` has saved, or one of its checkpoints. Throws FileError.
  static Translator from_directory(const std::filesystem::path& directory);

  /// The number of words that the model takes.
  int64_t most_words() const;
  /// Translates `texts`. Throws ValueError naming the text (from 1) that is not UTF-8 or, with Overlong::error, has too many
  /// words.
  Translations translate(const std::vector<std::string>& texts, TranslateOptions options = {});
  /// As the constructor was given them.
  const TranslationTokenizers& tokenizers() const { return tokenizers_; }

 private:
  models::Generator generator_;
  TranslationTokenizers tokenizers_;
};

}  // namespace lockstep::tasks
