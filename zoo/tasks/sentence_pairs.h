// Sentences and their translations, from two files with a sentence a line to batches.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/data_fingerprint.h"
#include "lockstep/data/dataset.h"
#include "lockstep/zoo/text/word_level.h"

namespace lockstep::tasks {

/// A sentence and its translation.
struct SentencePair {
  std::string source;  ///< UTF-8, without the end of the line
  std::string target;  ///< likewise
  int64_t line = 0;    ///< of both files, from 1
};

/// Sentences with their translations, in the order of the files.
struct SentencePairs {
  std::filesystem::path source_file;  ///< stands in messages
  std::filesystem::path target_file;  ///< stands in messages
  std::vector<SentencePair> pairs;    ///< in the order of their lines
  /// What both files hold (columns source and target); a part of the pairs has one of its own, by their numbers.
  DataFingerprint fingerprint{};
  /// Number of pairs.
  int64_t size() const { return static_cast<int64_t>(pairs.size()); }
};

/// Reads them. Throws FileError naming file and line where the files have different numbers of lines, a line is empty
/// or not UTF-8, and for no lines at all.
SentencePairs read_sentence_pairs(const std::filesystem::path& source_file,
                                  const std::filesystem::path& target_file);

/// A share of the pairs as validation set, chosen by seed: `pairs` keeps the others. Throws ValueError for a share outside
/// (0, 1).
SentencePairs split_off(SentencePairs& pairs, double share, uint64_t seed);

/// The special tokens of a tokenizer, which a translation model needs.
struct SpecialTokens {
  int64_t unknown = 0;  ///< id of [UNK]
  int64_t padding = 1;  ///< id of [PAD]
  int64_t start = 2;    ///< id of [SOS]
  int64_t end = 3;      ///< id of [EOS]
  /// Throws FileError that names `file` and the token it lacks.
  static SpecialTokens of(const text::WordLevelTokenizer& tokenizer, const std::filesystem::path& file);
};

/// [SOS] text [EOS], as the encoder reads it. Special tokens that stand in the text are unknown words.
std::vector<int64_t> encode_source(const std::string& text, const text::WordLevelTokenizer& tokenizer,
                                   const SpecialTokens& special);

/// What models see of some pairs.
struct EncodedPairs {
  std::vector<std::vector<int64_t>> sources;  ///< [SOS] text [EOS]
  std::vector<std::vector<int64_t>> targets;  ///< text alone
  std::vector<int64_t> rows;                  ///< which pair each is
  int64_t dropped = 0;                        ///< pairs that were too long
  std::string first_dropped{};                ///< "train.en:7: the sentence has 80 words"; empty if none was
};
/// What encode_pairs() does with long sentences.
struct EncodeOptions {
  int64_t seq_len = 0;         ///< the model's positions, special tokens included
  bool drop_overlong = false;  ///< leave longer pairs out and count them
};
/// Throws FileError naming file and line for a sentence that is too long, unless they are dropped, and ValueError when
/// none is left.
EncodedPairs encode_pairs(const SentencePairs& pairs, const text::WordLevelTokenizer& source_tokenizer,
                          const text::WordLevelTokenizer& target_tokenizer, const SpecialTokens& special,
                          const EncodeOptions& options);

/// Batches of source_ids ([SOS] x [EOS] [PAD]...), target_ids ([SOS] x [PAD]...), labels (x [EOS] [PAD]...), all
/// int64 [pairs, longest], and sample, int64 [pairs]: first_sample + the pair's number in `pairs`.
/// `tokens_per_batch` above 0: a sample of the data set is a whole batch of about that many tokens on the longer side,
/// padding included (batches_by_tokens); it wants a batch size of 1. Otherwise a sample is a pair.
Dataset translation_dataset(std::shared_ptr<const EncodedPairs> pairs, const SpecialTokens& special,
                            int64_t tokens_per_batch, int64_t first_sample = 0);

/// Words with spaces between as people write them: no space before a comma, none inside l'albero. English and
/// Italian rules; what a hyphen was cannot be known.
std::string detokenize(const std::string& words);

}  // namespace lockstep::tasks
