// What a BERT tokenizer is made of, and the files that it is read from and written to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/zoo/text/added_tokens.h"
#include "lockstep/zoo/text/char_table.h"

namespace lockstep::text {

struct TokenizerSpec {
  std::filesystem::path source;                        ///< named in errors
  std::vector<std::pair<std::string, int32_t>> vocab;  ///< unique tokens with their ids, by id
  bool clean_text = true;
  bool tokenize_chinese_chars = true;
  bool do_lower_case = true;
  std::optional<bool> strip_accents;  ///< default: as do_lower_case
  std::string unk_token = "[UNK]";
  std::string cls_token = "[CLS]";
  std::string sep_token = "[SEP]";
  std::string pad_token = "[PAD]";
  std::string mask_token = "[MASK]";
  std::string continuing_subword_prefix = "##";
  size_t max_input_chars_per_word = 100;
  std::vector<AddedToken> added_tokens;
  std::optional<int64_t> model_max_length;

  NormalizerOptions normalizer() const {
    return {clean_text, tokenize_chinese_chars, strip_accents.value_or(do_lower_case), do_lower_case};
  }
};

/// Fills `spec.vocab` and `spec.source` from vocab.txt as the peer does: the line number (from 0) is the id,
/// white space at the end of a line does not count, and of equal lines the last one does. Throws FileError
/// naming file and line.
void read_vocab_txt(const std::filesystem::path& path, TokenizerSpec& spec);

/// Everything that tokenizer.json says. Throws FileError naming file and field where that is not BERT's kind.
TokenizerSpec read_tokenizer_json(const std::filesystem::path& path);

/// A model directory: tokenizer.json, else vocab.txt; with the settings of tokenizer_config.json, which win
/// (with a warning) where they are given, unless it names a class that the peer reads from tokenizer.json
/// alone.
TokenizerSpec read_tokenizer_directory(const std::filesystem::path& directory);

/// Makes the special tokens that are in the vocabulary, and not yet added tokens, added tokens.
void add_special_tokens(TokenizerSpec& spec);

/// The texts of vocab.txt, tokenizer.json and tokenizer_config.json, by name.
std::map<std::string, std::string> tokenizer_files(const TokenizerSpec& spec);

}  // namespace lockstep::text
