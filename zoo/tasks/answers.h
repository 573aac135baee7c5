// Which part of a text a model gives as the answer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/zoo/tasks/question_windows.h"

namespace lockstep::tasks {

/// How answers are chosen; names and defaults are run_qa.py's.
struct AnswerOptions {
  int64_t n_best_size = 20;  ///< the best starts and ends of each window, and the best answers that are kept
  int64_t max_answer_length = 30;        ///< tokens
  bool version_2_with_negative = false;  ///< "no answer" is one
  /// "No answer" is chosen if its score exceeds that of the best answer by more than this.
  double null_score_diff_threshold = 0;
};

/// One of the best answers.
struct RankedAnswer {
  std::string text{};      ///< empty: no answer
  float start_logit = 0;   ///< of its first token
  float end_logit = 0;     ///< of its last token
  double probability = 0;  ///< softmax over the answers that are kept
};

/// What the model answers.
struct FoundAnswer {
  size_t question = 0;                 ///< its number in the file
  std::string text{};                  ///< empty: no answer
  std::vector<RankedAnswer> n_best{};  ///< best first
  std::optional<double>
      score_diff{};  ///< score of "no answer" over that of the best answer; with version_2_with_negative
};

/// The answers to all questions that have a window among `samples`, in the file's order, as run_qa.py's
/// postprocess_qa_predictions() finds them. `logits`: float [samples, length, 2], of the windows with the numbers `samples`.
std::vector<FoundAnswer> find_answers(const QuestionWindows& windows, const std::vector<int64_t>& samples,
                                      const at::Tensor& logits, const AnswerOptions& options);

/// In percent, as SQuAD's scripts: "exact_match" and "f1"; with version_2_with_negative "exact", "f1" and "total", and the same of the
/// questions with an answer (HasAns_exact, ...) and of those without (NoAns_exact, ...), if there are any.
std::map<std::string, double> score_answers(const QuestionWindows& windows,
                                            const std::vector<FoundAnswer>& answers,
                                            const AnswerOptions& options);

/// Writes the texts by question into PREFIX_predictions.json, the n best into PREFIX_nbest_predictions.json and, with
/// version_2_with_negative, score_diff into PREFIX_null_odds.json, each atomically. Throws FileError.
void write_answers(const std::filesystem::path& directory, const std::string& prefix,
                   const QuestionWindows& windows, const std::vector<FoundAnswer>& answers);

}  // namespace lockstep::tasks
