// Questions and their texts as what a model reads: windows of the text, each behind the question.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/zoo/tasks/squad_file.h"
#include "lockstep/zoo/text/bert_tokenizer.h"

namespace lockstep::tasks {

/// [CLS] question [SEP] part of the text [SEP].
struct QuestionWindow {
  size_t question = 0;  ///< number of the question in its file
  size_t begin = 0;     ///< the part's first token in the text
  size_t end = 0;       ///< behind its last one
  int64_t start_position =
      0;  ///< of the window, where the answer's first token is; 0, [CLS]: no answer in this window
  int64_t end_position = 0;  ///< likewise of the answer's last token
};

/// How windows are made; the names are run_qa.py's.
struct WindowOptions {
  int64_t max_seq_length = 384;   ///< tokens of a window
  int64_t doc_stride = 128;       ///< tokens that a window has in common with the one before it
  bool pad_to_max_length = true;  ///< pad all batches to max_seq_length, not to their longest window
  bool skip_long = false;  ///< leave out questions that leave no room to their text; otherwise an error
};

/// All windows of a file, in the order of its questions.
struct QuestionWindows {
  SquadFile file{};                               ///< where they come from
  std::vector<std::vector<int64_t>> questions{};  ///< tokens
  std::vector<text::TextTokens> contexts{};       ///< tokens and where they stand
  std::vector<QuestionWindow> windows{};          ///< one a sample, of each question one at least
  int64_t first_sample = 0;                       ///< number of the first one among all samples of a program
  int64_t skipped = 0;                            ///< questions that were left out as too long
  std::string first_skipped{};                    ///< what was wrong with the first of them

  /// The place of the text's part in the window.
  int64_t context_begin(const QuestionWindow& window) const {
    return static_cast<int64_t>(questions[window.question].size()) + 2;
  }
  /// Number of tokens.
  int64_t length(const QuestionWindow& window) const {
    return context_begin(window) + static_cast<int64_t>(window.end - window.begin) + 1;
  }
};

/// The first and the last token of those from `begin` to `end` that hold the characters from `answer.begin` to `answer.end`: the
/// last token that begins no later, and the first one that ends no earlier. Nothing if the answer does not lie within the tokens.
std::optional<std::pair<size_t, size_t>> find_answer_tokens(std::span<const text::CharSpan> tokens,
                                                            size_t begin, size_t end, text::CharSpan answer);

/// Tokenizes all and makes the windows, with the first answer's positions. Throws ValueError that names file and question for one
/// that leaves too little room to its text.
QuestionWindows make_question_windows(SquadFile file, const text::BertTokenizer& tokenizer,
                                      const WindowOptions& options, int64_t first_sample = 0);

/// The windows as a dataset. A Batch holds input_ids, token_type_ids and attention_mask, int64 [windows, length], and, if the file
/// has answers, labels, int64 [windows, 3]: start_position, end_position and the sample's number from first_sample on.
Dataset window_dataset(std::shared_ptr<const QuestionWindows> windows, const text::BertTokenizer& tokenizer,
                       const WindowOptions& options);

}  // namespace lockstep::tasks
