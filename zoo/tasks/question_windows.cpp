#include "lockstep/zoo/tasks/question_windows.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "lockstep/base/error.h"
#include "lockstep/tracking/progress/progress_bar.h"
#include "lockstep/zoo/text/pad_batch.h"
#include "lockstep/zoo/text/truncation.h"

namespace lockstep::tasks {
namespace {

/// What [CLS], [SEP] and [SEP] take of a window.
constexpr int64_t kSpecial = 3;

/// Why the text of a question cannot be divided; empty: it can.
std::string too_long(int64_t question, int64_t context, const WindowOptions& options) {
  const int64_t room = options.max_seq_length - question - kSpecial;
  if (context <= room || options.doc_stride < room) return "";
  return fmt::format(
      "its {} tokens leave {} of --max-seq-length {} to a text of {}, and windows of it must share {} (--doc-stride): "
      "give a larger --max-seq-length or a smaller --doc-stride",
      question, std::max<int64_t>(room, 0), options.max_seq_length, context, options.doc_stride);
}

void label(QuestionWindow& window, const QuestionWindows& all) {
  const auto& question = all.file.questions[window.question];
  if (question.answers.empty()) return;
  const auto& answer = question.answers.front();
  const auto found = find_answer_tokens(all.contexts[question.context].spans, window.begin, window.end,
                                        {.begin = answer.start, .end = answer.end()});
  if (!found) return;
  const int64_t shift = all.context_begin(window) - static_cast<int64_t>(window.begin);
  window.start_position = static_cast<int64_t>(found->first) + shift;
  window.end_position = static_cast<int64_t>(found->second) + shift;
}

text::Encoding encode_window(const QuestionWindows& all, const QuestionWindow& window,
                             const text::BertTokenizer& tokenizer) {
  const auto& question = all.questions[window.question];
  const auto& context = all.contexts[all.file.questions[window.question].context].ids;
  text::Encoding encoding;
  auto& ids = encoding.input_ids;
  ids.reserve(static_cast<size_t>(all.length(window)));
  ids.push_back(tokenizer.cls_token_id());
  ids.insert(ids.end(), question.begin(), question.end());
  ids.push_back(tokenizer.sep_token_id());
  encoding.token_type_ids.assign(ids.size(), 0);
  ids.insert(ids.end(), context.begin() + static_cast<std::ptrdiff_t>(window.begin),
             context.begin() + static_cast<std::ptrdiff_t>(window.end));
  ids.push_back(tokenizer.sep_token_id());
  encoding.token_type_ids.resize(ids.size(), 1);
  return encoding;
}

}  // namespace

std::optional<std::pair<size_t, size_t>> find_answer_tokens(std::span<const text::CharSpan> tokens,
                                                            size_t begin, size_t end, text::CharSpan answer) {
  if (begin == end || tokens[begin].begin > answer.begin || tokens[end - 1].end < answer.end)
    return std::nullopt;
  size_t first = begin, last = end - 1;
  while (first + 1 < end && tokens[first + 1].begin <= answer.begin) ++first;
  while (last > begin && tokens[last - 1].end >= answer.end) --last;
  return std::pair(first, last);
}

QuestionWindows make_question_windows(SquadFile file, const text::BertTokenizer& tokenizer,
                                      const WindowOptions& options, int64_t first_sample) {
  QuestionWindows all{.file = std::move(file), .first_sample = first_sample};
  ProgressBar bar({.total = static_cast<int64_t>(all.file.contexts.size() + all.file.questions.size()),
                   .label = "tokenize",
                   .unit = "texts",
                   .leave = false,
                   .delay = std::chrono::seconds(1)});
  for (const auto& context : all.file.contexts) {
    all.contexts.push_back(tokenizer.tokenize(context));
    bar.advance();
  }
  for (size_t number = 0; number < all.file.questions.size(); ++number) {
    const auto& question = all.file.questions[number];
    all.questions.push_back(tokenizer.tokenize(question.question).ids);
    bar.advance();
    const auto asked = static_cast<int64_t>(all.questions.back().size());
    const size_t told = all.contexts[question.context].ids.size();
    if (const auto problem = too_long(asked, static_cast<int64_t>(told), options); !problem.empty()) {
      const auto message = fmt::format("{}: question {}: {}", all.file.source.string(), question.id, problem);
      if (!options.skip_long)
        throw ValueError(fmt::format("{}, or leave it out with --skip-bad-rows", message));
      if (all.skipped++ == 0) all.first_skipped = message;
      continue;
    }
    const auto room = static_cast<size_t>(options.max_seq_length - asked - kSpecial);
    for (const auto& [begin, end] :
         text::overlapping_windows(told, room, static_cast<size_t>(options.doc_stride))) {
      all.windows.push_back({.question = number, .begin = begin, .end = end});
      label(all.windows.back(), all);
    }
  }
  if (all.windows.empty())
    throw ValueError(fmt::format("{}: no question is left; the first that was left out: {}",
                                 all.file.source.string(), all.first_skipped));
  return all;
}

Dataset window_dataset(std::shared_ptr<const QuestionWindows> windows, const text::BertTokenizer& tokenizer,
                       const WindowOptions& options) {
  Dataset dataset{.size = static_cast<int64_t>(windows->windows.size())};
  for (const auto& window : windows->windows) dataset.lengths.push_back(windows->length(window));
  const text::PadOptions padding{
      .pad_token_id = tokenizer.pad_token_id(),
      .pad_to_multiple_of = options.pad_to_max_length ? options.max_seq_length : 1};
  dataset.collate = [windows = std::move(windows), padding, &tokenizer](const std::vector<int64_t>& indices) {
    std::vector<text::Encoding> encodings;
    std::vector<int64_t> places;
    at::Tensor labels = at::empty({static_cast<int64_t>(indices.size()), 3}, at::kLong);
    auto* label = labels.mutable_data_ptr<int64_t>();
    for (const int64_t index : indices) {
      const auto& window = windows->windows.at(static_cast<size_t>(index));
      places.push_back(static_cast<int64_t>(encodings.size()));
      encodings.push_back(encode_window(*windows, window, tokenizer));
      for (const int64_t value : {window.start_position, window.end_position, windows->first_sample + index})
        *label++ = value;
    }
    const auto padded = text::pad_batch(encodings, {}, places, padding);
    Batch batch{{"input_ids", padded.input_ids},
                {"token_type_ids", padded.token_type_ids},
                {"attention_mask", padded.attention_mask}};
    if (windows->file.have_answers) batch.set("labels", std::move(labels));
    return batch;
  };
  return dataset;
}

}  // namespace lockstep::tasks
