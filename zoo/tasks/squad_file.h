// Questions about texts, from files in the format of SQuAD.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/data_fingerprint.h"

namespace lockstep::tasks {

/// An answer that stands in the text.
struct SquadAnswer {
  std::string text{};  ///< UTF-8
  int64_t start = 0;   ///< its first character (code point) in the text
  /// Behind its last character.
  int64_t end() const;
};

/// A question about a text.
struct SquadQuestion {
  std::string id{};                    ///< unique in its file
  std::string question{};              ///< UTF-8
  size_t context = 0;                  ///< number of the text in SquadFile::contexts
  std::vector<SquadAnswer> answers{};  ///< none: the text does not answer it, or the file has no answers
};

/// How read_squad() reads.
struct SquadOptions {
  bool needs_answers = true;     ///< otherwise a file may lack them
  bool may_lack_answer = false;  ///< version 2: a text need not answer a question
  bool skip_bad_rows = false;    ///< leaves out questions that are bad, and counts them
};

/// The questions of a file, in its order.
struct SquadFile {
  std::filesystem::path source{};          ///< stands in messages
  std::vector<std::string> contexts{};     ///< the texts
  std::vector<SquadQuestion> questions{};  ///< at least one
  bool have_answers = false;               ///< whether each question says what answers it
  DataFingerprint fingerprint{};           ///< of questions, texts and answers
  int64_t skipped_rows = 0;                ///< bad questions that were left out
  std::string first_skipped{};             ///< what was wrong with the first of them
  /// Number of questions.
  int64_t size() const { return static_cast<int64_t>(questions.size()); }
};

/// Reads SQuAD's JSON, version 1.1 or 2.0 ("data", "paragraphs", "qas"); the same with the fields of `datasets` directly under
/// "data" (id, question, context, answers: {text, answer_start}); or, of a name that ends in .jsonl, such an object a line. A question
/// is bad if a field is missing or has another type, its id stands twice, or an answer does not stand where answer_start says, in
/// characters. Throws FileError that names the file, the question and what was expected.
SquadFile read_squad(const std::filesystem::path& path, const SquadOptions& options = {});

/// Number of characters (code points) of `text`, which is UTF-8.
int64_t count_characters(std::string_view text);

/// Where each character of `text` begins, in bytes, and the end of the last one.
std::vector<size_t> character_offsets(std::string_view text);

}  // namespace lockstep::tasks
