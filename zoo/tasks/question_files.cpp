#include "lockstep/zoo/tasks/question_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/zoo/tasks/record_entries.h"

namespace lockstep::tasks {

void QuestionFiles::add_flags(RecipeFlags& flags) {
  using checkpoint::RecordKind;
  const char* const other_rows = "if it changes the training questions";
  flags.begin_group("Data");
  flags
      .add_option(
          "--train-file", train_file, "SQuAD's JSON, version 1.1 or 2.0",
          OnResume::refuses(RecordKind::data, "if questions, texts or answers differ; the path may change"))
      .type_name("FILE");
  flags
      .add_option("--validation-file", validation_file,
                  "Evaluated after training, and during it as --eval-strategy says",
                  OnResume::refuses(RecordKind::data,
                                    "if questions, texts or answers differ; adding or leaving it out is new"))
      .type_name("FILE");
  flags
      .add_option("--test-file", test_file, "Answered with --do-predict; it may lack answers",
                  OnResume::takes_new())
      .type_name("FILE");
  flags.add_flag("--do-predict", do_predict, "Write OUTPUT_DIR/predict_predictions.json for --test-file.",
                 OnResume::takes_new());
  flags
      .add_option("--max-seq-length", max_seq_length, "Tokens of a window: question and a part of the text",
                  OnResume::refuses(RecordKind::flags, ""))
      .default_text("384, or what the model takes");
  flags
      .add_option("--doc-stride", doc_stride, "Tokens that two windows of a long text have in common",
                  OnResume::refuses())
      .with_default();
  flags.add_flag("--no-pad-to-max-length", no_pad_to_max_length,
                 "Pad batches to their longest window: faster, but a loss then depends on its batch.",
                 OnResume::refuses());
  flags.add_flag("--version-2-with-negative", answers.version_2_with_negative,
                 "Questions need not have an answer.", OnResume::refuses());
  flags.add_flag("--skip-bad-rows", skip_bad_rows, "Leave out questions that cannot be used, and count them.",
                 OnResume::refuses(RecordKind::data, other_rows));
  flags.begin_group("Answers");
  flags
      .add_option("--n-best-size", answers.n_best_size,
                  "The best starts, ends and answers that are looked at", OnResume::takes_new())
      .with_default();
  flags
      .add_option("--max-answer-length", answers.max_answer_length, "Tokens of the longest answer",
                  OnResume::takes_new())
      .with_default();
  flags
      .add_option("--null-score-diff-threshold", answers.null_score_diff_threshold,
                  "How much the score of no answer must exceed that of the best answer",
                  OnResume::takes_new())
      .with_default();
}

void QuestionFiles::check(const TrainingArguments& args) const {
  if (train_file.empty() && validation_file.empty() && test_file.empty()) {
    throw ValueError("nothing to do: give --train-file, --validation-file, or --do-predict with --test-file");
  }
  if (do_predict == test_file.empty()) {
    throw ValueError("--do-predict and --test-file belong together; give both or neither");
  }
  if (args.eval_strategy != IntervalStrategy::NO && validation_file.empty()) {
    throw ValueError("--eval-strategy needs a --validation-file");
  }
  const auto at_least = [](const char* flag, int64_t value, int64_t least) {
    if (value < least) throw ValueError(fmt::format("{} is {}; expected at least {}", flag, value, least));
  };
  at_least("--max-seq-length", max_seq_length.value_or(384), 5);
  at_least("--doc-stride", doc_stride, 0);
  at_least("--n-best-size", answers.n_best_size, 1);
  at_least("--max-answer-length", answers.max_answer_length, 1);
  if (!std::isfinite(answers.null_score_diff_threshold)) {
    throw ValueError(fmt::format("--null-score-diff-threshold is {}; expected a number",
                                 answers.null_score_diff_threshold));
  }
  if (answers.null_score_diff_threshold != 0 && !answers.version_2_with_negative) {
    throw ValueError("--null-score-diff-threshold is for --version-2-with-negative; give both");
  }
}

QuestionSets QuestionFiles::read() const {
  const auto read_file = [&](const std::filesystem::path& file,
                             bool needs_answers) -> std::optional<SquadFile> {
    if (file.empty()) return std::nullopt;
    return read_squad(file, {.needs_answers = needs_answers,
                             .may_lack_answer = answers.version_2_with_negative,
                             .skip_bad_rows = skip_bad_rows});
  };
  return {.train = read_file(train_file, true),
          .validation = read_file(validation_file, true),
          .test = read_file(test_file, false)};
}

WindowOptions QuestionFiles::window_options(int64_t positions) const {
  if (max_seq_length && *max_seq_length > positions) {
    throw ValueError(
        fmt::format("--max-seq-length is {}; the model has {} positions", *max_seq_length, positions));
  }
  return {.max_seq_length = max_seq_length.value_or(std::min<int64_t>(384, positions)),
          .doc_stride = doc_stride,
          .pad_to_max_length = !no_pad_to_max_length,
          .skip_long = skip_bad_rows};
}

WindowSets QuestionFiles::windows(QuestionSets sets, const text::BertTokenizer& tokenizer,
                                  int64_t positions) const {
  int64_t first_sample = 0;
  const auto make = [&](std::optional<SquadFile>& file) -> std::shared_ptr<const QuestionWindows> {
    if (!file) return nullptr;
    auto made = std::make_shared<const QuestionWindows>(
        make_question_windows(std::move(*file), tokenizer, window_options(positions), first_sample));
    first_sample += static_cast<int64_t>(made->windows.size());
    return made;
  };
  WindowSets made{.train = make(sets.train)};
  first_sample = 0;
  made.validation = make(sets.validation);
  made.test = make(sets.test);
  return made;
}

checkpoint::RunRecord QuestionFiles::record(const QuestionSets& sets, int64_t positions,
                                            const checkpoint::RunRecord& saved) const {
  checkpoint::RunRecord record;
  record.set("max_seq_length", checkpoint::RecordKind::flags, window_options(positions).max_seq_length);
  if (sets.train) record_train_data(record, sets.train->fingerprint);
  record_validation_data(record, sets.validation ? std::optional(sets.validation->fingerprint) : std::nullopt,
                         saved);
  return record;
}

}  // namespace lockstep::tasks
