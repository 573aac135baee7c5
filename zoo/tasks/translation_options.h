// What the translate recipe is told: its flags, and the JSON configuration of the original program.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/trainer/training_arguments.h"
#include "lockstep/zoo/models/transformer/generator.h"
#include "lockstep/zoo/models/transformer/transformer_config.h"
#include "lockstep/zoo/tasks/recipe_flags.h"
#include "lockstep/zoo/tasks/translator.h"

namespace lockstep::tasks {

/// Flags of TranslationOptions that the recipe and its errors name (flag_errors.h).
inline constexpr std::array<std::string_view, 5> kNamedTranslationFlags = {"config", "input", "interactive",
                                                                           "overlong", "tokens-per-batch"};

/// The flags of the translate recipe beside the TrainingArguments.
struct TranslationOptions {
  /// Sets the defaults: greedy translation, as long as the sentence asks for.
  TranslationOptions();

  // Data
  std::filesystem::path data_dir;     ///< has train.LANGUAGE and, if there are, validation.LANGUAGE
  std::filesystem::path source_file;  ///< sentences to train on, one a line; default: from data_dir
  std::filesystem::path target_file;  ///< their translations, line by line; default: from data_dir
  std::filesystem::path validation_source_file;  ///< default: from data_dir; else validation_split
  std::filesystem::path validation_target_file;  ///< default: from data_dir; else validation_split
  std::string lang_src = "en";                   ///< language to translate from
  std::string lang_tgt = "it";                   ///< language to translate into
  double validation_split = 0.1;  ///< share of the pairs that validate; without validation files
  bool drop_overlong = false;     ///< leave out and count pairs longer than the model; otherwise an error
  // Tokenizers
  std::filesystem::path tokenizer_dir;  ///< has tokenizer_LANGUAGE.json of both; empty: they are trained
  size_t vocab_size = 30'000;           ///< most words per language, special tokens included
  size_t min_frequency = 2;             ///< rarer words are unknown
  // Model
  models::TransformerConfig model;  ///< its vocabularies are the tokenizers'
  int64_t tokens_per_batch = 1024;  ///< per rank and micro-batch, with padding; 0: a fixed number of pairs
  bool batch_size_given = false;    ///< --per-device-train-batch-size stands on the command line
  std::string preload;              ///< empty, latest, or a number
  std::string model_basename = "tmodel_";  ///< of an epoch's checkpoint: see epoch_name()
  // Validation and translation
  int64_t validation_examples = 2;    ///< translations to print after an evaluation
  models::GenerateOptions generate;   ///< for validation and translation
  std::filesystem::path model_dir;    ///< trained model to translate with; empty: the output directory
  std::filesystem::path input;        ///< file whose lines are translated; "-": standard input; empty: none
  bool interactive = false;           ///< translate lines as they are typed
  int64_t translate_batch_size = 32;  ///< sentences at a time
  std::string overlong = "skip";      ///< lines of `input` that are too long: skip, cut or error

  /// Adds the flags of training.
  void add_training_flags(RecipeFlags& flags);
  /// Adds the flags of translating with a trained model.
  void add_translation_flags(RecipeFlags& flags);

  /// Reads a file of the original program's keys (batch_size, num_epochs, lr, seq_len, d_model, lang_src, lang_tgt,
  /// model_folder, model_basename, preload, tokenizer_file and so on), as defaults for flags that are read
  /// afterwards. Throws FileError that names the key.
  void read_config(const std::filesystem::path& path, TrainingArguments& args);
  /// Fills in the files of data_dir, and the batch size of a run with tokens_per_batch. Throws ValueError for flags that do
  /// not fit together.
  void check(TrainingArguments& args);
  /// How lines are translated.
  TranslateOptions translate_options() const;
  /// Whether to translate with a trained model instead of training.
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

}  // namespace lockstep::tasks
