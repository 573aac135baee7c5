// The files of a text classification: their flags, tables and labels.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cli/command_line.h"
#include "lockstep/data/text_table.h"
#include "lockstep/tasks/text_classification.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// --train-file, --validation-file, --test-file and what is in their columns.
struct TextFiles {
  std::filesystem::path train_file, validation_file, test_file;
  std::string text_column = "text", text_pair_column, label_column = "label";
  std::vector<std::string> label_names;
  std::optional<size_t> max_seq_length;
  bool do_predict = false;

  void add_flags(CommandLine program);
  /// Throws ValueError for flags that do not fit together.
  void check(const TrainingArguments& args) const;

  std::optional<TextTable> train, validation, test;
  std::vector<std::string> labels;
  /// Reads the tables, and chooses the labels: `known` are the model's. Throws FileError and ValueError.
  void read(const std::vector<std::string>& known);
  /// One of the three tables as a dataset; empty for a table that is not there. `positions`: the most tokens that
  /// the model takes. Throws ValueError.
  Dataset dataset(const std::optional<TextTable>& table, const BertTokenizer& tokenizer,
                  int64_t positions) const;
};

}  // namespace lockstep
