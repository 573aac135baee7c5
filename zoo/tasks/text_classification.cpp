#include "lockstep/zoo/tasks/text_classification.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iterator>
#include <memory>
#include <set>
#include <unordered_map>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/tracking/progress/progress_bar.h"
#include "lockstep/zoo/text/pad_batch.h"

namespace lockstep::tasks {
namespace {

// More labels than this are a mistake in the choice of the column.
constexpr int64_t kMaxLabels = 10000;
constexpr auto kBarDelay = std::chrono::seconds(1);

// "1", and "1.0" too: so pandas writes whole numbers of a column that had empty cells once.
std::optional<int64_t> whole_number(std::string_view text) {
  constexpr std::string_view kBlanks = " \t";  // as the readers of numbers have it
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  text = text.substr(0, text.find_last_not_of(kBlanks) + 1);
  int64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  const bool has_fraction = end != last && *end == '.';
  if (!std::all_of(has_fraction ? end + 1 : end, last, [&](char c) { return has_fraction && c == '0'; })) {
    return std::nullopt;
  }
  return value;
}

// The numbers of a model's labels in data that has numbers: the names where they are such, the places of Hugging
// Face's default names; nothing for other names.
std::optional<std::set<int64_t>> parse_numbers(const std::vector<std::string>& labels) {
  std::set<int64_t> numbers, places;
  for (size_t id = 0; id < labels.size(); ++id) {
    if (const auto number = whole_number(labels[id])) numbers.insert(*number);
    places.insert(static_cast<int64_t>(id));
  }
  if (numbers.size() == labels.size()) return numbers;
  if (has_default_names(labels)) return places;
  return std::nullopt;
}

/// The ids of labels: their places among `labels`, by name and by number.
class LabelIds {
 public:
  explicit LabelIds(const std::vector<std::string>& labels) : labels_(labels) {
    for (size_t id = 0; id < labels.size(); ++id) {
      if (!by_name_.emplace(labels[id], static_cast<int64_t>(id)).second) {
        throw ValueError(
            fmt::format("label \"{}\" is named twice; every label needs a name of its own", labels[id]));
      }
      if (const auto number = whole_number(labels[id])) by_number_.emplace(*number, static_cast<int64_t>(id));
    }
    // If names are numbers themselves, a number in the data is a name in another spelling, and never a place.
    names_are_numbers_ = !by_number_.empty();
    for (size_t id = 0; id < labels.size() && !names_are_numbers_; ++id) {
      by_number_.emplace(static_cast<int64_t>(id), static_cast<int64_t>(id));
    }
  }

  std::optional<int64_t> find(std::string_view value) const {
    const auto named = by_name_.find(std::string(value));
    if (named != by_name_.end()) return named->second;
    const auto number = whole_number(value);
    const auto numbered = number ? by_number_.find(*number) : by_number_.end();
    if (numbered == by_number_.end()) return std::nullopt;
    return numbered->second;
  }

  /// What find() expects.
  std::string describe() const {
    if (labels_.size() > 20) return fmt::format("one of the {} labels", labels_.size());
    const auto names = fmt::format("one of {}", fmt::join(labels_, ", "));
    return names_are_numbers_ ? names : fmt::format("{} or a number from 0 to {}", names, labels_.size() - 1);
  }

 private:
  const std::vector<std::string>& labels_;
  std::unordered_map<std::string, int64_t> by_name_;
  std::unordered_map<int64_t, int64_t> by_number_;
  bool names_are_numbers_ = false;
};

Batch named(const text::PaddedBatch& padded) {
  Batch batch{{"input_ids", padded.input_ids},
              {"token_type_ids", padded.token_type_ids},
              {"attention_mask", padded.attention_mask}};
  if (padded.labels.defined()) batch.set("labels", padded.labels);
  return batch;
}

[[noreturn]] void bad_label(const tables::TextTable& table, const std::string& column, size_t row,
                            const std::string& expected) {
  throw ValueError(fmt::format("{}: label \"{}\" in column {} is unknown; expected {}", table.place(row),
                               table.column(column)[row], column, expected));
}

}  // namespace

bool has_default_names(const std::vector<std::string>& labels) {
  for (size_t id = 0; id < labels.size(); ++id) {
    if (labels[id] != fmt::format("LABEL_{}", id)) return false;
  }
  return true;
}

std::vector<std::string> infer_labels(const tables::TextTable& table, const std::string& column) {
  if (auto names = table.class_names(column); names.size() > 1) return names;
  const auto values = table.column(column);
  std::set<std::string> distinct;
  std::set<int64_t> distinct_numbers;
  const bool numbers = whole_number(values.front()).has_value();
  for (size_t row = 0; row < values.size(); ++row) {
    distinct.emplace(values[row]);
    if (!numbers) {
      if (values[row].empty()) bad_label(table, column, row, "a name");
      continue;
    }
    const auto number = whole_number(values[row]);
    if (!number || *number < 0 || *number >= kMaxLabels) {
      bad_label(table, column, row,
                fmt::format("a whole number from 0 to {}, as in the first row; --label-names takes names",
                            kMaxLabels - 1));
    }
    distinct_numbers.insert(*number);
  }
  if ((numbers ? distinct_numbers.size() : distinct.size()) < 2) {
    throw ValueError(
        fmt::format("{}: column {} holds the one label \"{}\" only; a classifier needs two or more",
                    table.source().string(), column, *distinct.begin()));
  }
  if (!numbers) {
    if (static_cast<int64_t>(distinct.size()) > kMaxLabels) {
      throw ValueError(fmt::format("{}: column {} holds {} different labels; is it the label column?",
                                   table.source().string(), column, distinct.size()));
    }
    return {distinct.begin(), distinct.end()};
  }
  std::vector<std::string> labels;
  for (int64_t id = 0; id <= *distinct_numbers.rbegin(); ++id) labels.push_back(fmt::format("LABEL_{}", id));
  return labels;
}

bool are_same_labels(const std::vector<std::string>& values, const std::vector<std::string>& known) {
  if (std::is_permutation(values.begin(), values.end(), known.begin(), known.end())) return true;
  std::set<int64_t> numbers;
  for (const auto& value : values) {
    const auto number = whole_number(value);
    if (!number) return false;
    numbers.insert(*number);
  }
  return parse_numbers(known) == numbers;
}

ChosenLabels choose_labels(const std::vector<std::string>& given, const KnownLabels& known,
                           const std::optional<tables::TextTable>& train, const std::string& column) {
  if (!given.empty()) return {.names = given};
  if (!train) return {.names = known.names};
  auto found = infer_labels(*train, column);
  const auto values = train->column(column);
  const std::set<std::string> distinct(values.begin(), values.end());
  const bool are_same =
      std::is_permutation(found.begin(), found.end(), known.names.begin(), known.names.end()) ||
      are_same_labels({distinct.begin(), distinct.end()}, known.names);
  if (are_same) return {.names = known.names};
  if (!known.has_classifier) return {.names = std::move(found)};
  if (known.may_replace_head) return {.names = std::move(found), .new_head = true};
  // The head tells as many classes apart as there are, and nobody has named them: as transformers' run_glue does.
  if (has_default_names(known.names) && found.size() == known.names.size())
    return {.names = std::move(found)};
  const LabelIds ids(known.names);
  for (size_t row = 0; row < values.size(); ++row) {
    if (ids.find(values[row])) continue;
    const char* const how_to_name = has_default_names(known.names) ? " (--label-names gives them names)" : "";
    bad_label(*train, column, row, ids.describe() + how_to_name + known.advice);
  }
  return {.names = known.names};
}

ChosenLabels choose_wanted_labels(const std::vector<std::string>& wanted, const KnownLabels& known) {
  const auto& names = known.names;
  if (std::is_permutation(wanted.begin(), wanted.end(), names.begin(), names.end())) return {.names = names};
  if (!known.has_classifier) return {.names = wanted};
  if (are_same_labels(wanted, names)) return {.names = names};
  if (known.may_replace_head) return {.names = wanted, .new_head = true};
  const LabelIds ids(names);
  const auto lacking =
      std::find_if(wanted.begin(), wanted.end(), [&](const auto& label) { return !ids.find(label); });
  if (lacking == wanted.end()) return {.names = names};
  if (has_default_names(names) && wanted.size() == names.size()) return {.names = wanted};
  throw ValueError(
      fmt::format("label \"{}\" is unknown; expected {}{}", *lacking, ids.describe(), known.advice));
}

tables::TextTable with_labels(const tables::TextTable& table, const std::string& column,
                              const std::vector<std::string>& labels, ExpectedLabels expected) {
  const auto values = table.column(column);
  std::vector<int64_t> rows;
  for (size_t row = 0; row < values.size(); ++row) {
    if (std::find(labels.begin(), labels.end(), values[row]) != labels.end()) {
      rows.push_back(static_cast<int64_t>(row));
    }
  }
  std::vector<std::string> missing;
  for (const auto& label : labels) {
    if (std::find(values.begin(), values.end(), label) == values.end()) missing.push_back(label);
  }
  if (rows.empty() || (expected == ExpectedLabels::all && !missing.empty())) {
    const std::set<std::string> there(values.begin(), values.end());
    const auto shown = std::vector<std::string>(
        there.begin(),
        std::next(there.begin(), std::min<std::ptrdiff_t>(20, static_cast<std::ptrdiff_t>(there.size()))));
    throw ValueError(fmt::format("{}: no row has the label {} in column {}; there are {}{}",
                                 table.source().string(), fmt::join(missing, " or "), column,
                                 fmt::join(shown, ", "), there.size() > shown.size() ? ", ..." : ""));
  }
  return table.select(rows);
}

std::vector<int64_t> label_ids(const tables::TextTable& table, const std::string& column,
                               const std::vector<std::string>& labels) {
  const LabelIds known(labels);
  const auto values = table.column(column);
  std::vector<int64_t> ids;
  ids.reserve(values.size());
  for (size_t row = 0; row < values.size(); ++row) {
    const auto id = known.find(values[row]);
    if (!id) bad_label(table, column, row, known.describe());
    ids.push_back(*id);
  }
  return ids;
}

bool knows_labels(const tables::TextTable& table, const std::string& column,
                  const std::vector<std::string>& labels) {
  const LabelIds known(labels);
  const auto values = table.column(column);
  for (size_t row = 0; row < values.size(); ++row) {
    if (!known.find(values[row])) return false;
  }
  return true;
}

Dataset text_dataset(const tables::TextTable& table, const TextColumns& columns,
                     const text::BertTokenizer& tokenizer, const std::vector<std::string>& labels,
                     const TextDatasetOptions& options) {
  // Shared by all copies of the function that makes batches, and never changed afterwards.
  struct Samples {
    std::vector<int64_t> labels{};
    std::vector<text::Encoding> encodings{};  // empty: made for each batch
  };
  const auto samples = std::make_shared<Samples>();
  const auto encode = [texts = table.column(columns.text),
                       pairs =
                           columns.text_pair ? std::optional(table.column(*columns.text_pair)) : std::nullopt,
                       table, &tokenizer, max_seq_length = options.max_seq_length](size_t row) {
    return tokenizer.encode(texts[row], pairs ? std::optional<std::string_view>((*pairs)[row]) : std::nullopt,
                            max_seq_length);
  };
  if (columns.label) samples->labels = label_ids(table, *columns.label, labels);

  Dataset dataset{.size = static_cast<int64_t>(table.size())};
  ProgressBar bar(
      {.total = dataset.size, .label = "tokenize", .unit = "texts", .leave = false, .delay = kBarDelay});
  for (size_t row = 0; row < table.size(); ++row) {
    auto encoding = encode(row);
    dataset.lengths.push_back(static_cast<int64_t>(encoding.input_ids.size()));
    if (options.keep_tokens) samples->encodings.push_back(std::move(encoding));
    bar.advance();
  }
  // No sample is longer than max_seq_length, so the only multiple of it is itself.
  const text::PadOptions padding{
      .pad_token_id = tokenizer.pad_token_id(),
      .pad_to_multiple_of = options.pad_to_max_length ? static_cast<int64_t>(options.max_seq_length) : 1};
  if (options.keep_tokens) {  // the texts may go
    dataset.collate = [samples, padding](const std::vector<int64_t>& indices) {
      return named(text::pad_batch(samples->encodings, samples->labels, indices, padding));
    };
    return dataset;
  }
  dataset.collate = [samples, padding, encode, size = dataset.size](const std::vector<int64_t>& indices) {
    std::vector<text::Encoding> encodings;
    std::vector<int64_t> of_batch, places;
    for (const int64_t index : indices) {
      if (index < 0 || index >= size)
        throw ValueError(fmt::format("there is no sample {}; there are {}", index, size));
      places.push_back(static_cast<int64_t>(encodings.size()));
      encodings.push_back(encode(static_cast<size_t>(index)));
      if (!samples->labels.empty()) of_batch.push_back(samples->labels[static_cast<size_t>(index)]);
    }
    return named(text::pad_batch(encodings, of_batch, places, padding));
  };
  return dataset;
}

}  // namespace lockstep::tasks
