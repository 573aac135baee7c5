// A vocabulary from the texts at hand, for a model that is trained from scratch.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

/// How build_vocab() chooses tokens.
struct BuildVocabOptions {
  size_t vocab_size = 8000;   ///< at most; special tokens and characters come first
  size_t min_frequency = 2;   ///< words that occur less often are left to their characters
  bool do_lower_case = true;  ///< as BertTokenizerOptions::do_lower_case, which must be the same
};

/// Tokens in the order of their ids: [PAD] [UNK] [CLS] [SEP] [MASK], the characters of the texts (each also
/// as a continuation, "##x"), then whole words, most frequent first. Words are BertTokenizer's words. The
/// result depends on the texts alone.
std::vector<std::string> build_vocab(const std::vector<std::string_view>& texts,
                                     BuildVocabOptions options = {});

/// Writes a vocab.txt that BertTokenizer::from_file reads. Atomic; throws FileError.
void write_vocab(const std::filesystem::path& path, const std::vector<std::string>& tokens);

}  // namespace lockstep::text
