// The files of a text classification: their flags, tables and labels.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cli/command_line.h"
#include "lockstep/data/split.h"
#include "lockstep/tables/text_table.h"
#include "lockstep/tasks/text_classification.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// --train-file, --validation-file, --test-file and what is in their columns.
struct TextFiles {
  std::filesystem::path train_file, validation_file, test_file;
  std::string text_column = "text", text_pair_column, label_column = "label";
  std::vector<std::string> label_names, keep_labels;
  std::optional<SplitSize> validation_split;
  std::optional<size_t> split_seed;
  std::optional<size_t> max_seq_length;
  bool pad_to_max_length = false;
  bool skip_bad_rows = false;
  std::filesystem::path data_cache_dir;
  bool do_predict = false;

  void add_flags(CommandLine program);
  /// Throws ValueError for flags that do not fit together.
  void check(const TrainingArguments& args) const;

  std::optional<TextTable> train, validation, test;
  std::vector<std::string> labels;
  /// Reads the tables, leaves out rows whose labels are not kept (but of the test table), chooses the labels
  /// (`known` are the model's) and splits the training table. Throws FileError and ValueError.
  void read(const std::vector<std::string>& known);
  /// The labels, how many rows of the training file were kept, and how many bad rows were left out.
  std::string about() const;
  /// One of the three tables as a dataset; empty for a table that is not there. `positions`: the most tokens that
  /// the model takes. Throws ValueError.
  Dataset dataset(const std::optional<TextTable>& table, const BertTokenizer& tokenizer,
                  int64_t positions) const;

 private:
  TextTable read_table(const std::filesystem::path& file, bool is_test) const;
  void leave_out_labels();
  void split_train();
  size_t rows_before_ = 0, rows_kept_ = 0;  // of the training file
};

}  // namespace lockstep
