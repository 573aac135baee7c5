// What the translate recipe is told: its flags, and the JSON configuration of the original program.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "lockstep/cli/command_line.h"
#include "lockstep/models/transformer/generator.h"
#include "lockstep/models/transformer/transformer_config.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

struct TranslationOptions {
  TranslationOptions();

  // Data
  std::filesystem::path data_dir, source_file, target_file, validation_source_file, validation_target_file;
  std::string lang_src = "en", lang_tgt = "it";
  double validation_split = 0.1;
  bool drop_overlong = false;
  // Tokenizers
  std::filesystem::path tokenizer_dir;
  size_t vocab_size = 30'000, min_frequency = 2;
  // Model
  models::TransformerConfig model;
  int64_t tokens_per_batch = 1024;
  bool batch_size_given = false;  ///< --per-device-train-batch-size stands on the command line
  std::string preload;            ///< empty, latest, or a number
  std::string model_basename = "tmodel_";
  // Validation and translation
  int64_t validation_examples = 2;
  models::GenerateOptions generate;
  std::filesystem::path model_dir, input;
  bool interactive = false;
  int64_t translate_batch_size = 32;

  /// The flags of training, and those of translating with a trained model.
  void add_training_flags(CommandLine program);
  void add_translation_flags(CommandLine program);

  /// Reads a file of the original program's keys (batch_size, num_epochs, lr, seq_len, d_model, lang_src, lang_tgt,
  /// model_folder, model_basename, preload, tokenizer_file and so on), as defaults for flags that are read
  /// afterwards. Throws FileError that names the key.
  void read_config(const std::filesystem::path& path, TrainingArguments& args);
  /// Fills in the files of data_dir, and the batch size of a run with tokens_per_batch. Throws ValueError for flags that do
  /// not fit together.
  void check(TrainingArguments& args);
  bool translates() const { return interactive || !input.empty(); }
};

/// The recipe's own defaults, the original program's: Adam with eps 1e-9, 1e-4 without a schedule, 30 epochs, smoothing
/// 0.1, batches of 4, a checkpoint and an evaluation after each epoch.
void set_translation_defaults(TrainingArguments& args);

/// "tmodel_07" for epoch 7 (from 0).
std::string epoch_name(const std::string& basename, int64_t epoch);
/// The checkpoint that `preload` names in `folder`: empty for an empty `preload`, and for latest where there is none. Throws
/// ValueError that lists what there is where N is missing.
std::filesystem::path find_preload(const std::filesystem::path& folder, const std::string& basename,
                                   const std::string& preload);

}  // namespace lockstep
