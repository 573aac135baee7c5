// Pairs of words for natural language inference, generated from WordNet's relations.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/data/sentiment.h"

namespace lockstep::tools {

/// A set of synonyms: a line of data.noun or data.verb (wndb(5WN), https://wordnet.princeton.edu).
struct Synset {
  struct Pointer {
    char relation = 0;                     ///< '@' hypernym, '!' antonym; others are left out
    int64_t target = 0;                    ///< the offset of a synset of the same part of speech
    int source_word = 0, target_word = 0;  ///< from 1; 0: of the synsets as a whole
  };
  int64_t offset = 0;
  std::vector<std::string> words{};  ///< blanks in the place of underscores
  std::vector<Pointer> pointers{};
};

/// The synsets of `content`; `name` stands in errors. Throws FileError naming file and line for what is no such
/// line, and where there is none.
std::vector<Synset> parse_synsets(std::string_view content, const std::string& name);

struct LexicalPair {
  std::string premise{}, hypothesis{};
  std::string_view label{};  ///< entailment, neutral or contradiction
  std::string synset{};      ///< "noun-02084071", by which pairs are split
  bool operator==(const LexicalPair&) const = default;
};

/// Pairs of words: one with a word of a hypernym is entailment; a word and its antonym contradiction; two words
/// whose synsets share a hypernym neutral. One word of each synset takes part in the first and third, the first
/// one. A pair that comes with two labels, or twice, stays out or comes once. As many of each label as of
/// the rarest, at most `most` (0: all), chosen and ordered by a hash of the words. `part`: "noun", for LexicalPair::synset.
std::vector<LexicalPair> lexical_pairs(const std::vector<Synset>& synsets, const std::string& part,
                                       size_t most);

/// CSV with the columns premise, hypothesis, label, synset.
std::string lexical_csv(const std::vector<LexicalPair>& pairs);

}  // namespace lockstep::tools
