// The files of a text classification: their flags, tables and labels.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/split.h"
#include "lockstep/trainer/training_arguments.h"
#include "lockstep/zoo/tables/text_table.h"
#include "lockstep/zoo/tasks/bert_source.h"
#include "lockstep/zoo/tasks/datasets.h"
#include "lockstep/zoo/tasks/recipe_flags.h"

namespace lockstep::tasks {

/// What TextFiles::read() has read.
struct TextTables {
  std::optional<tables::TextTable> train{};  ///< nothing without --train-file
  std::optional<tables::TextTable>
      validation{};                         ///< nothing without --validation-file and --validation-split
  std::optional<tables::TextTable> test{};  ///< nothing without --test-file
  ChosenLabels labels{};                    ///< names of the classes by id
  int64_t train_rows_read = 0;              ///< rows of --train-file that can be read
  int64_t train_rows_kept = 0;              ///< those whose labels are kept, before --validation-split
  /// Number of samples to train on.
  int64_t train_size() const { return train ? static_cast<int64_t>(train->size()) : 0; }
};

/// --train-file, --validation-file, --test-file and what is in their columns.
struct TextFiles {
  std::filesystem::path train_file;  ///< CSV, TSV, JSON lines, Parquet or Arrow; empty: nothing is trained
  std::filesystem::path validation_file;      ///< likewise; empty: validation_split, or no evaluation
  std::filesystem::path test_file;            ///< likewise; empty: nothing is predicted
  std::string text_column = "text";           ///< column of the text
  std::string text_pair_column;               ///< column of a pair's second text; empty: single texts
  std::string label_column = "label";         ///< column of the label, a number or a name
  std::vector<std::string> label_names;       ///< names of the labels by number; empty: choose_labels()
  std::vector<std::string> keep_labels;       ///< rows with other labels are left out; empty: all rows stay
  std::optional<SplitSize> validation_split;  ///< share or number of training rows that become `validation`
  std::optional<size_t> split_seed;           ///< of validation_split; default: 42
  std::optional<size_t> max_seq_length;  ///< tokens; default: 128, or what the model takes if that is less
  bool pad_to_max_length = false;        ///< pad to max_seq_length, not to a batch's longest text
  bool skip_bad_rows = false;            ///< leave out rows that cannot be read; otherwise FileError
  bool no_quotes = false;                ///< Quoting::NONE of CSV and TSV files
  bool quotes = false;                   ///< Quoting::MINIMAL; neither: Quoting::AUTO
  std::filesystem::path data_cache_dir;  ///< TextTableOptions::cache_dir; empty: tables are held in memory
  bool do_predict = false;               ///< whether test_file is labeled

  /// Adds the flags, which write into the members above.
  void add_flags(RecipeFlags& flags);
  /// How CSV and TSV files quote.
  tables::Quoting quoting() const;
  /// Throws ValueError for flags that do not fit together.
  void check(const TrainingArguments& args) const;

  /// Reads the tables, leaves out rows whose labels are not kept (but of the test table), chooses the labels and
  /// splits the training table. Throws FileError and ValueError.
  TextTables read(const KnownLabels& known) const;
  /// The labels, how many rows of the training file were kept, and how many bad rows were left out.
  std::string about(const TextTables& tables) const;
  /// Tokens of the longest sample for a model that takes `positions`. Throws ValueError if it takes fewer than
  /// --max-seq-length.
  int64_t longest_sample(int64_t positions) const;
  /// What a resume must find again: the training rows, the validation rows, the labels and --max-seq-length. `saved`: the record of the
  /// checkpoint, empty without one.
  checkpoint::RunRecord record(const TextTables& tables, int64_t positions,
                               const checkpoint::RunRecord& saved) const;
  /// The tables as datasets; a test table has labels if the model knows all of them. `positions`: the most tokens
  /// that the model takes. With data_cache_dir `tokenizer` must outlive them. Throws ValueError.
  Datasets datasets(const TextTables& tables, const text::BertTokenizer& tokenizer, int64_t positions) const;
};

}  // namespace lockstep::tasks
