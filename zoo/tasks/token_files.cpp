#include "lockstep/zoo/tasks/token_files.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/metrics/classification.h"
#include "lockstep/tracking/progress/progress_bar.h"
#include "lockstep/zoo/tasks/flag_errors.h"
#include "lockstep/zoo/tasks/record_entries.h"
#include "lockstep/zoo/text/metrics/entity_scores.h"
#include "lockstep/zoo/text/pad_batch.h"

namespace lockstep::tasks {
namespace {

constexpr int64_t kIgnored = -100;  // cross_entropy_sum()'s ignore_index
constexpr int64_t kNoToken = -1;
// More labels than this are a mistake in the choice of the column.
constexpr size_t kMaxTokenLabels = 10000;

/// The labels' ids by name. Throws ValueError for a name that stands twice.
std::unordered_map<std::string_view, int64_t> number_labels(const std::vector<std::string>& labels) {
  std::unordered_map<std::string_view, int64_t> ids;
  for (size_t id = 0; id < labels.size(); ++id) {
    if (!ids.emplace(labels[id], static_cast<int64_t>(id)).second)
      throw ValueError(
          fmt::format("the model has the label {} twice; each needs a name of its own", labels[id]));
  }
  return ids;
}

std::string listed(const std::vector<std::string>& labels) {
  constexpr size_t kMost = 20;
  const std::vector<std::string> first(
      labels.begin(), labels.begin() + static_cast<std::ptrdiff_t>(std::min(labels.size(), kMost)));
  return fmt::format("{}{}", fmt::join(first, ", "), labels.size() > kMost ? ", ..." : "");
}

/// Throws ValueError for the first label of `sentences` that is not one of `labels`.
void check_labels(const LabeledSentences& sentences, const std::vector<std::string>& labels,
                  const std::string& advice) {
  const auto ids = number_labels(labels);
  for (size_t i = 0; i < sentences.sentences.size(); ++i) {
    for (const auto& label : sentences.sentences[i].labels) {
      if (ids.contains(label)) continue;
      throw ValueError(fmt::format("{}: label \"{}\" is unknown; expected one of {}{}", sentences.place(i),
                                   label, listed(labels), advice));
    }
  }
}

bool knows_all(const LabeledSentences& sentences, const std::vector<std::string>& labels) {
  const auto found = sentences.labels();
  const auto ids = number_labels(labels);
  return std::all_of(found.begin(), found.end(), [&](const auto& label) { return ids.contains(label); });
}

TokenSample make_sample(const LabeledSentence& sentence, const text::BertTokenizer& tokenizer,
                        size_t max_length) {
  auto words = tokenizer.encode_words(sentence.words, max_length);
  TokenSample sample{.encoding = std::move(words.encoding),
                     .first_tokens = std::vector<int64_t>(sentence.words.size(), kNoToken)};
  for (size_t token = 0; token < words.word_ids.size(); ++token) {
    const int64_t word = words.word_ids[token];
    if (word == text::WordsEncoding::kNoWord) continue;
    auto& first = sample.first_tokens[static_cast<size_t>(word)];
    if (first == kNoToken) first = static_cast<int64_t>(token);
  }
  return sample;
}

/// Labels the tokens of each word: the first one, and the others up to the next word's first one as `inside` says.
void label_tokens(TokenSample& sample, const std::vector<int64_t>& of_words,
                  const std::vector<int64_t>* inside) {
  sample.labels.assign(sample.encoding.input_ids.size(), kIgnored);
  int64_t end = static_cast<int64_t>(sample.labels.size()) - 1;  // [SEP]
  for (size_t word = of_words.size(); word-- > 0;) {
    const int64_t first = sample.first_tokens[word];
    if (first == kNoToken) continue;
    const auto at = sample.labels.begin() + first;
    if (inside != nullptr)
      std::fill(at, sample.labels.begin() + end, (*inside)[static_cast<size_t>(of_words[word])]);
    *at = of_words[word];
    end = first;
  }
}

}  // namespace

ChosenLabels choose_token_labels(const KnownLabels& known, const std::optional<LabeledSentences>& train) {
  if (!train) return {.names = known.names};
  auto found = train->labels();
  if (found.size() < 2 && !known.has_classifier) {
    throw ValueError(fmt::format("{} holds the label {} only; expected two labels or more",
                                 train->source.string(), listed(found)));
  }
  if (found.size() > kMaxTokenLabels) {
    throw ValueError(
        fmt::format("{} holds {} different labels, among them {}; is it the column of the labels?",
                    train->source.string(), found.size(), listed(found)));
  }
  if (std::is_permutation(found.begin(), found.end(), known.names.begin(), known.names.end()))
    return {.names = known.names};
  if (!known.has_classifier) return {.names = std::move(found)};
  if (known.may_replace_head) return {.names = std::move(found), .new_head = true};
  if (has_default_names(known.names) && found.size() == known.names.size())
    return {.names = std::move(found)};
  check_labels(*train, known.names, known.advice);
  return {.names = known.names};
}

std::vector<int64_t> inside_labels(const std::vector<std::string>& labels) {
  std::vector<int64_t> inside;
  for (size_t id = 0; id < labels.size(); ++id) {
    const auto& label = labels[id];
    const auto found = label.starts_with("B-")
                           ? std::find(labels.begin(), labels.end(), "I-" + label.substr(2))
                           : labels.end();
    inside.push_back(found == labels.end() ? static_cast<int64_t>(id) : found - labels.begin());
  }
  return inside;
}

namespace {

using checkpoint::RecordKind;

constexpr auto kTokenFlags = std::to_array<RecipeFlag<TokenFiles>>({
    {{.name = "train-file",
      .member = &TokenFiles::train_file,
      .words = "A word and its label a line as in CoNLL-2003, or JSON lines, Parquet or Arrow with lists"},
     OnResume::refuses(RecordKind::data, "if words or labels differ; the path may change")},
    {{.name = "validation-file",
      .member = &TokenFiles::validation_file,
      .words = "Evaluated after training, and during it as --eval-strategy says"},
     OnResume::refuses(RecordKind::data, "if words or labels differ; you may add it or leave it out")},
    {{.name = "test-file",
      .member = &TokenFiles::test_file,
      .words = "Labeled with --do-predict; it may lack labels"},
     OnResume::takes_new()},
    {{.name = "do-predict",
      .member = &TokenFiles::do_predict,
      .words = "Write OUTPUT_DIR/predictions.jsonl for --test-file."},
     OnResume::takes_new()},
    {{.name = "text-column-name",
      .member = &TokenFiles::text_column_name,
      .preset = kHeldValue,
      .words = "Column of a table with the lists of words"},
     OnResume::refuses()},
    {{.name = "label-column-name",
      .member = &TokenFiles::label_column_name,
      .preset = kHeldValue,
      .words = "Column of a table with the lists of labels"},
     OnResume::refuses()},
    {{.name = "max-seq-length",
      .member = &TokenFiles::max_seq_length,
      .default_words = "what the model takes",
      .words = "Longer sentences are cut to this many tokens"},
     OnResume::refuses(RecordKind::flags, "")},
    {{.name = "pad-to-max-length",
      .member = &TokenFiles::pad_to_max_length,
      .words = "Pad every batch to --max-seq-length, not to its longest sentence."},
     OnResume::takes_new("results differ by rounding")},
    {{.name = "label-all-tokens",
      .member = &TokenFiles::label_all_tokens,
      .words = "Label all tokens of a word, those behind the first one with I- for B-."},
     OnResume::refuses()},
    {{.name = "return-entity-level-metrics",
      .member = &TokenFiles::return_entity_level_metrics,
      .words = "Measure each type of entity too."},
     OnResume::takes_new()},
    {{.name = "skip-bad-rows",
      .member = &TokenFiles::skip_bad_rows,
      .words = "Leave out rows of tables that cannot be read, and count them."},
     OnResume::refuses(RecordKind::data, "if it changes the training rows")},
});

using TokenErrors = FlagErrors<kTokenFlags, kTrainingFlags>;

}  // namespace

void TokenFiles::add_flags(RecipeFlags& flags) {
  flags.begin_group("Data");
  flags.add_table<TokenFiles>(kTokenFlags, *this);
}

void TokenFiles::check(const TrainingArguments& args) const {
  if (train_file.empty() && validation_file.empty() && test_file.empty()) {
    TokenErrors::refuse(
        "nothing to do: give --train-file, --validation-file, or --do-predict with --test-file");
  }
  if (do_predict == test_file.empty()) {
    TokenErrors::refuse("--do-predict and --test-file belong together; give both or neither");
  }
  if (args.eval_strategy != IntervalStrategy::NO && validation_file.empty()) {
    TokenErrors::refuse("--eval-strategy needs a --validation-file");
  }
  if (text_column_name == label_column_name) {
    TokenErrors::refuse("--text-column-name and --label-column-name are both {}; give each its own",
                        text_column_name);
  }
  if (max_seq_length && *max_seq_length < 3) {
    TokenErrors::refuse("--max-seq-length is {}; expected at least 3: [CLS], a token, [SEP]",
                        *max_seq_length);
  }
}

TokenSentences TokenFiles::read(const KnownLabels& known) const {
  const auto read_file = [&](const std::filesystem::path& file,
                             bool needs_labels) -> std::optional<LabeledSentences> {
    if (file.empty()) return std::nullopt;
    return read_labeled_sentences(file, {.text_column = text_column_name,
                                         .label_column = label_column_name,
                                         .needs_labels = needs_labels,
                                         .skip_bad_rows = skip_bad_rows});
  };
  TokenSentences all{.train = read_file(train_file, true),
                     .validation = read_file(validation_file, true),
                     .test = read_file(test_file, false)};
  all.labels = choose_token_labels(known, all.train);
  if (all.validation) check_labels(*all.validation, all.labels.names, "");
  return all;
}

int64_t TokenFiles::longest_sample(int64_t positions) const {
  if (max_seq_length && *max_seq_length > static_cast<size_t>(positions)) {
    TokenErrors::refuse("--max-seq-length is {}; the model has {} positions", *max_seq_length, positions);
  }
  return max_seq_length ? static_cast<int64_t>(*max_seq_length) : positions;
}

checkpoint::RunRecord TokenFiles::record(const TokenSentences& all, int64_t positions,
                                         const checkpoint::RunRecord& saved) const {
  checkpoint::RunRecord record;
  record.set("labels", checkpoint::RecordKind::labels, all.labels.names);
  record.set("max_seq_length", checkpoint::RecordKind::flags, longest_sample(positions));
  if (all.train) record_train_data(record, all.train->fingerprint);
  record_validation_data(record, all.validation ? std::optional(all.validation->fingerprint) : std::nullopt,
                         saved);
  return record;
}

std::vector<std::shared_ptr<Metric>> TokenFiles::metrics(const std::vector<std::string>& labels) const {
  if (!return_entity_level_metrics) {
    return {text::entity_precision(labels), text::entity_recall(labels), text::entity_f1(labels), accuracy()};
  }
  std::vector<std::shared_ptr<Metric>> all{text::entity_precision(labels, {.name = "overall_precision"}),
                                           text::entity_recall(labels, {.name = "overall_recall"}),
                                           text::entity_f1(labels, {.name = "overall_f1"}),
                                           // If each word has one label, that is the accuracy.
                                           precision({.average = "micro", .name = "overall_accuracy"})};
  for (const auto& type : text::entity_types(labels)) {
    all.push_back(text::entity_precision(labels, {.type = type, .name = type + "_precision"}));
    all.push_back(text::entity_recall(labels, {.type = type, .name = type + "_recall"}));
    all.push_back(text::entity_f1(labels, {.type = type, .name = type + "_f1"}));
    all.push_back(text::entity_number(labels, {.type = type, .name = type + "_number"}));
  }
  return all;
}

std::vector<TokenSample> TokenFiles::encode(const LabeledSentences& sentences,
                                            const std::vector<std::string>& labels,
                                            const text::BertTokenizer& tokenizer, int64_t positions) const {
  const auto ids = number_labels(labels);
  const auto inside = inside_labels(labels);
  const bool is_labeled = sentences.have_labels && knows_all(sentences, labels);
  std::vector<TokenSample> samples;
  ProgressBar bar({.total = sentences.size(),
                   .label = "tokenize",
                   .unit = "sentences",
                   .leave = false,
                   .delay = std::chrono::seconds(1)});
  for (const auto& sentence : sentences.sentences) {
    samples.push_back(make_sample(sentence, tokenizer, static_cast<size_t>(longest_sample(positions))));
    if (is_labeled) {
      std::vector<int64_t> of_words;
      for (const auto& label : sentence.labels) of_words.push_back(ids.at(label));
      label_tokens(samples.back(), of_words, label_all_tokens ? &inside : nullptr);
    }
    bar.advance();
  }
  return samples;
}

Dataset TokenFiles::dataset(std::shared_ptr<const std::vector<TokenSample>> samples,
                            const text::BertTokenizer& tokenizer, int64_t positions) const {
  Dataset dataset{.size = static_cast<int64_t>(samples->size())};
  for (const auto& sample : *samples)
    dataset.lengths.push_back(static_cast<int64_t>(sample.encoding.input_ids.size()));
  const text::PadOptions padding{.pad_token_id = tokenizer.pad_token_id(),
                                 .pad_to_multiple_of = pad_to_max_length ? longest_sample(positions) : 1};
  dataset.collate = [samples = std::move(samples), padding](const std::vector<int64_t>& indices) {
    std::vector<text::Encoding> encodings;
    std::vector<int64_t> places;
    for (const int64_t index : indices) {
      places.push_back(static_cast<int64_t>(encodings.size()));
      encodings.push_back(samples->at(static_cast<size_t>(index)).encoding);
    }
    const auto padded = text::pad_batch(encodings, {}, places, padding);
    Batch batch{{"input_ids", padded.input_ids},
                {"token_type_ids", padded.token_type_ids},
                {"attention_mask", padded.attention_mask}};
    if (samples->front().labels.empty()) return batch;
    at::Tensor labels = at::full(padded.input_ids.sizes(), kIgnored, at::kLong);
    auto* row = labels.mutable_data_ptr<int64_t>();
    for (const int64_t index : indices) {
      const auto& of_sample = (*samples)[static_cast<size_t>(index)].labels;
      std::copy(of_sample.begin(), of_sample.end(), row);
      row += labels.size(1);
    }
    batch.set("labels", std::move(labels));
    return batch;
  };
  return dataset;
}

int64_t count_unlabeled_words(const std::vector<TokenSample>& samples) {
  int64_t count = 0;
  for (const auto& sample : samples)
    count += std::count(sample.first_tokens.begin(), sample.first_tokens.end(), kNoToken);
  return count;
}

void write_token_predictions(const std::filesystem::path& path, const LabeledSentences& sentences,
                             const std::vector<TokenSample>& samples, const at::Tensor& logits,
                             const std::vector<std::string>& labels) {
  const at::Tensor best = logits.argmax(2).contiguous();
  write_file_atomically(path, [&](const auto& append) {
    for (int64_t row = 0; row < best.size(0); ++row) {
      const auto& sentence = sentences.sentences[static_cast<size_t>(row)];
      const auto* predicted = best.const_data_ptr<int64_t>() + row * best.size(1);
      nlohmann::json found = nlohmann::json::array();
      for (const int64_t token : samples[static_cast<size_t>(row)].first_tokens) {
        if (token == kNoToken)
          found.push_back(nullptr);
        else
          found.push_back(labels.at(static_cast<size_t>(predicted[token])));
      }
      const nlohmann::json line = {{"index", sentence.record}, {"tokens", sentence.words}, {"labels", found}};
      append(dump_json(line) + "\n");
    }
  });
}

}  // namespace lockstep::tasks
