// What a WordLevel tokenizer is made of, and the file that it is read from and written to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/zoo/text/added_tokens.h"

namespace lockstep::text {

struct WordLevelSpec {
  std::vector<std::pair<std::string, int32_t>> vocab;  ///< unique tokens with their ids, by id
  std::string unk_token;                               ///< is in `vocab`
  std::vector<AddedToken> added_tokens;
};

/// Throws FileError naming file and field where that is not WordLevelTokenizer's kind.
WordLevelSpec read_word_level_json(const std::filesystem::path& path);

/// tokenizer.json, as the peer writes it.
std::string word_level_json(const WordLevelSpec& spec);

}  // namespace lockstep::text
