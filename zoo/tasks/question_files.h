// The files of question answering: their flags, questions and windows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "lockstep/trainer/training_arguments.h"
#include "lockstep/zoo/tasks/answers.h"
#include "lockstep/zoo/tasks/question_windows.h"
#include "lockstep/zoo/tasks/recipe_flags.h"
#include "lockstep/zoo/tasks/squad_file.h"

namespace lockstep::tasks {

/// What QuestionFiles::read() has read.
struct QuestionSets {
  std::optional<SquadFile> train{};       ///< nothing without --train-file
  std::optional<SquadFile> validation{};  ///< nothing without --validation-file
  std::optional<SquadFile> test{};        ///< nothing without --test-file
};

/// The files as windows; null: none. Those of validation and test are numbered through.
struct WindowSets {
  std::shared_ptr<const QuestionWindows> train{};       ///< of --train-file
  std::shared_ptr<const QuestionWindows> validation{};  ///< of --validation-file
  std::shared_ptr<const QuestionWindows> test{};        ///< of --test-file
};

/// --train-file, --validation-file, --test-file and how they are read and answered.
struct QuestionFiles {
  std::filesystem::path train_file;       ///< empty: nothing is trained
  std::filesystem::path validation_file;  ///< empty: there is no evaluation
  std::filesystem::path test_file;        ///< empty: nothing is answered
  std::optional<int64_t> max_seq_length;  ///< tokens; default: 384, or what the model takes if that is less
  int64_t doc_stride = 128;               ///< WindowOptions::doc_stride
  bool no_pad_to_max_length = false;      ///< pad to a batch's longest window
  bool skip_bad_rows = false;             ///< leave out questions that cannot be used
  bool do_predict = false;                ///< whether test_file is answered
  AnswerOptions answers{};                ///< how answers are chosen

  /// Adds the flags, which write into the members above.
  void add_flags(RecipeFlags& flags);
  /// Throws ValueError for flags that do not fit together.
  void check(const TrainingArguments& args) const;
  /// Reads the files. Throws FileError.
  QuestionSets read() const;
  /// For a model that takes `positions`. Throws ValueError if it takes fewer than --max-seq-length.
  WindowOptions window_options(int64_t positions) const;
  /// Tokenizes all. Throws ValueError.
  WindowSets windows(QuestionSets sets, const text::BertTokenizer& tokenizer, int64_t positions) const;
  /// What a resume must find again: questions, texts, answers and --max-seq-length. `saved`: the record of the checkpoint, empty
  /// without one.
  checkpoint::RunRecord record(const QuestionSets& sets, int64_t positions,
                               const checkpoint::RunRecord& saved) const;
};

}  // namespace lockstep::tasks
