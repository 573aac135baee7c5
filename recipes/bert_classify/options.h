// What bert_classify's command line says.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/trainer/training_arguments.h"

struct Options {
  lockstep::TrainingArguments training;
  std::filesystem::path model_name_or_path, tokenizer_name, train_file, validation_file, test_file,
      log_sample_ids;
  std::string model_config;
  std::string text_column = "text", text_pair_column, label_column = "label";
  std::vector<std::string> label_names;
  std::optional<size_t> max_seq_length;
  bool do_predict = false;
  double hidden_dropout = -1, attention_dropout = -1;  ///< negative: the model's
};

/// Nothing after --help, which is printed on rank 0. Throws ValueError naming the flag that is wrong.
std::optional<Options> parse_options(int argc, char** argv);
