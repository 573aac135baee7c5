// Answers to questions against reference answers, as SQuAD's official scripts score them.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep::text {

/// The rules of a version of the data set.
enum class SquadVersion {
  v1,  ///< every question has an answer
  v2,  ///< a question without an answer wants an empty prediction
};

/// What a prediction is worth, each from 0 to 1.
struct AnswerScore {
  double exact = 0;  ///< whether it is one of the answers
  double f1 = 0;     ///< of its words and those of the answer that is closest
};

/// Scores a prediction after both were normalized: lower case; without ASCII's punctuation, without a, an and the, white
/// space as single spaces. `answers`: none or only such that normalize to nothing: a question without an answer, which
/// scores 0 in version 1. Texts are UTF-8; otherwise throws ValueError. Thread-safe.
AnswerScore score_answer(std::string_view prediction, std::span<const std::string> answers,
                         SquadVersion version = SquadVersion::v1);

/// `answer` as score_answer() compares it. Must be UTF-8.
std::string normalize_answer(std::string_view answer);

}  // namespace lockstep::text
