// Sentences whose words have labels, from files in the format of CoNLL-2003 and from tables with lists of tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/data_fingerprint.h"

namespace lockstep::tasks {

/// A sentence and the labels of its words.
struct LabeledSentence {
  std::vector<std::string> words{};   ///< UTF-8
  std::vector<std::string> labels{};  ///< one a word; empty if the file has none
  int64_t record = 0;                 ///< its number in the file, from 0
  int64_t line = 0;                   ///< on which it begins, from 1; 0 in formats without lines
};

/// How read_labeled_sentences() reads.
struct LabeledSentencesOptions {
  std::string text_column = "tokens";     ///< of a table: lists of words
  std::string label_column = "ner_tags";  ///< of a table: lists of labels
  bool needs_labels = true;               ///< otherwise a file may lack them
  bool skip_bad_rows = false;             ///< leaves out rows of a table that cannot be read, and counts them
};

/// The sentences of a file, in its order.
struct LabeledSentences {
  std::filesystem::path source{};            ///< stands in messages
  std::vector<LabeledSentence> sentences{};  ///< at least one
  bool have_labels = false;                  ///< all of them or none
  DataFingerprint fingerprint{};             ///< of words and labels
  int64_t skipped_rows = 0;                  ///< bad rows that were left out
  std::string first_skipped{};               ///< what was wrong with the first of them
  /// Number of sentences.
  int64_t size() const { return static_cast<int64_t>(sentences.size()); }
  /// Where a sentence stands, for messages: "train.conll:7", "train.parquet: record 7".
  std::string place(size_t sentence) const;
  /// The labels that occur, sorted.
  std::vector<std::string> labels() const;
};

/// Reads .jsonl, .json, .parquet and .arrow as tables, any other file in the format of CoNLL-2003: a word a line, its label last,
/// what lies between them is not read; an empty line ends a sentence; lines that begin with -DOCSTART- are left out. Fields are
/// separated by spaces or tabs, and each line has as many as the first one; a file of words alone has one. Throws FileError that
/// names file, line and what was expected.
LabeledSentences read_labeled_sentences(const std::filesystem::path& path,
                                        const LabeledSentencesOptions& options = {});

}  // namespace lockstep::tasks
