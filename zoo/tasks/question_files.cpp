#include "lockstep/zoo/tasks/question_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/zoo/tasks/flag_errors.h"
#include "lockstep/zoo/tasks/record_entries.h"

namespace lockstep::tasks {

namespace {

using checkpoint::RecordKind;

constexpr auto kQuestionFlags = std::to_array<RecipeFlag<QuestionFiles>>({
    {{.name = "train-file",
      .member = &QuestionFiles::train_file,
      .words = "SQuAD's JSON, version 1.1 or 2.0"},
     OnResume::refuses(RecordKind::data, "if questions, texts or answers differ; the path may change")},
    {{.name = "validation-file",
      .member = &QuestionFiles::validation_file,
      .words = "Evaluated after training, and during it as --eval-strategy says"},
     OnResume::refuses(RecordKind::data,
                       "if questions, texts or answers differ; you may add it or leave it out")},
    {{.name = "test-file",
      .member = &QuestionFiles::test_file,
      .words = "Answered with --do-predict; it may lack answers"},
     OnResume::takes_new()},
    {{.name = "do-predict",
      .member = &QuestionFiles::do_predict,
      .words = "Write OUTPUT_DIR/predict_predictions.json for --test-file."},
     OnResume::takes_new()},
    {{.name = "max-seq-length",
      .member = &QuestionFiles::max_seq_length,
      .default_words = "384, or what the model takes",
      .words = "Tokens of a window: question and a part of the text"},
     OnResume::refuses(RecordKind::flags, "")},
    {{.name = "doc-stride",
      .member = &QuestionFiles::doc_stride,
      .preset = kHeldValue,
      .words = "Tokens that two windows of a long text have in common"},
     OnResume::refuses()},
    {{.name = "no-pad-to-max-length",
      .member = &QuestionFiles::no_pad_to_max_length,
      .words = "Pad batches to their longest window: faster, but a loss then depends on its batch."},
     OnResume::refuses()},
    {{.name = "version-2-with-negative",
      .target = member_of<&QuestionFiles::answers, &AnswerOptions::version_2_with_negative>,
      .words = "Questions need not have an answer."},
     OnResume::refuses()},
    {{.name = "skip-bad-rows",
      .member = &QuestionFiles::skip_bad_rows,
      .words = "Leave out questions that cannot be used, and count them."},
     OnResume::refuses(RecordKind::data, "if it changes the training questions")},
    {{.name = "n-best-size",
      .target = member_of<&QuestionFiles::answers, &AnswerOptions::n_best_size>,
      .preset = kHeldValue,
      .group = "Answers",
      .words = "The best starts, ends and answers that are looked at"},
     OnResume::takes_new()},
    {{.name = "max-answer-length",
      .target = member_of<&QuestionFiles::answers, &AnswerOptions::max_answer_length>,
      .preset = kHeldValue,
      .group = "Answers",
      .words = "Tokens of the longest answer"},
     OnResume::takes_new()},
    {{.name = "null-score-diff-threshold",
      .target = member_of<&QuestionFiles::answers, &AnswerOptions::null_score_diff_threshold>,
      .preset = kHeldValue,
      .group = "Answers",
      .words = "How much the score of no answer must exceed that of the best answer"},
     OnResume::takes_new()},
});

using QuestionErrors = FlagErrors<kQuestionFlags, kTrainingFlags>;

}  // namespace

void QuestionFiles::add_flags(RecipeFlags& flags) {
  flags.begin_group("Data");
  flags.add_table<QuestionFiles>(kQuestionFlags, *this);
}

void QuestionFiles::check(const TrainingArguments& args) const {
  if (train_file.empty() && validation_file.empty() && test_file.empty()) {
    QuestionErrors::refuse(
        "nothing to do: give --train-file, --validation-file, or --do-predict with --test-file");
  }
  if (do_predict == test_file.empty()) {
    QuestionErrors::refuse("--do-predict and --test-file belong together; give both or neither");
  }
  if (args.eval_strategy != IntervalStrategy::NO && validation_file.empty()) {
    QuestionErrors::refuse("--eval-strategy needs a --validation-file");
  }
  const auto at_least = [](QuestionErrors::Name flag, int64_t value, int64_t least) {
    if (value < least)
      QuestionErrors::refuse("{} is {}; expected at least {}", std::string_view(flag), value, least);
  };
  at_least("--max-seq-length", max_seq_length.value_or(384), 5);
  at_least("--doc-stride", doc_stride, 0);
  at_least("--n-best-size", answers.n_best_size, 1);
  at_least("--max-answer-length", answers.max_answer_length, 1);
  if (!std::isfinite(answers.null_score_diff_threshold)) {
    QuestionErrors::refuse("--null-score-diff-threshold is {}; expected a number",
                           answers.null_score_diff_threshold);
  }
  if (answers.null_score_diff_threshold != 0 && !answers.version_2_with_negative) {
    QuestionErrors::refuse("--null-score-diff-threshold is for --version-2-with-negative; give both");
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
    QuestionErrors::refuse("--max-seq-length is {}; the model has {} positions", *max_seq_length, positions);
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
