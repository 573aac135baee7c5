#include "lockstep/zoo/tasks/text_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/shell.h"
#include "lockstep/zoo/tasks/flag_errors.h"
#include "lockstep/zoo/tasks/record_entries.h"

namespace lockstep::tasks {

namespace {

using checkpoint::RecordKind;

// "0.1": a share; "500": so many.
SplitSize split_size(const std::string& flag, const std::string& text) {
  const char* const end = text.data() + text.size();
  int64_t count = 0;
  if (const auto parsed = std::from_chars(text.data(), end, count);
      parsed.ec == std::errc() && parsed.ptr == end) {
    if (count > 0) return count;
  } else {
    double share = 0;
    const auto number = std::from_chars(text.data(), end, share);
    if (number.ec == std::errc() && number.ptr == end && share > 0 && share < 1) return share;
  }
  throw ValueError(fmt::format("{} is {}; expected a share between 0 and 1 or a number of rows", flag, text));
}

constexpr const char* kOtherRows = "if it changes the training rows";

void read_split_size(TextFiles& files, const std::string& flag, const std::string& text) {
  files.validation_split = split_size(flag, text);
}

constexpr auto kTextFlags = std::to_array<RecipeFlag<TextFiles>>({
    {{.name = "train-file",
      .member = &TextFiles::train_file,
      .words = "CSV or TSV with a header line, JSON lines (.jsonl), Parquet or Arrow"},
     OnResume::refuses(RecordKind::data, "if rows or their texts differ; the path may change")},
    {{.name = "validation-file",
      .member = &TextFiles::validation_file,
      .words = "Evaluated after training, and during it as --eval-strategy says"},
     OnResume::refuses(RecordKind::data, "if rows or their texts differ; you may add it or leave it out")},
    {{.name = "validation-split",
      .target = taken_by<read_split_size>,
      .value = "SIZE",
      .words =
          "Instead of a --validation-file: this share of the training file, as 0.1, or so many of its rows"},
     OnResume::refuses(RecordKind::data, kOtherRows)},
    {{.name = "split-seed",
      .member = &TextFiles::split_seed,
      .default_words = "42",
      .words = "Seed of --validation-split"},
     OnResume::refuses(RecordKind::data, kOtherRows)},
    {{.name = "test-file", .member = &TextFiles::test_file, .words = "Labeled with --do-predict"},
     OnResume::takes_new()},
    {{.name = "do-predict",
      .member = &TextFiles::do_predict,
      .words = "Write OUTPUT_DIR/predictions.jsonl for --test-file."},
     OnResume::takes_new()},
    {{.name = "text-column",
      .member = &TextFiles::text_column,
      .preset = kHeldValue,
      .words = "Column of the text"},
     OnResume::refuses()},
    {{.name = "text-pair-column",
      .member = &TextFiles::text_pair_column,
      .words = "Column of the second text of a pair"},
     OnResume::refuses()},
    {{.name = "label-column",
      .member = &TextFiles::label_column,
      .preset = kHeldValue,
      .words = "Column of the label: numbers or names"},
     OnResume::refuses()},
    {{.name = "label-names",
      .member = &TextFiles::label_names,
      .words = "Names of the labels by number, with commas between",
      .has_commas = true},
     OnResume::refuses(RecordKind::labels, "without the flag the checkpoint's are kept")},
    {{.name = "keep-labels",
      .member = &TextFiles::keep_labels,
      .words =
          "Leave out rows with other labels, but for --test-file. A new classifier has these, in this order",
      .has_commas = true},
     OnResume::refuses(RecordKind::data, kOtherRows)},
    {{.name = "max-seq-length",
      .member = &TextFiles::max_seq_length,
      .default_words = "128, or what the model takes",
      .words = "Longer texts are cut to this many tokens"},
     OnResume::refuses(RecordKind::flags, "")},
    {{.name = "skip-bad-rows",
      .member = &TextFiles::skip_bad_rows,
      .words = "Leave out rows that cannot be read, and count them."},
     OnResume::refuses(RecordKind::data, kOtherRows)},
    {{.name = "no-quotes",
      .member = &TextFiles::no_quotes,
      .words = "Quotes in CSV and TSV files are text, as in GLUE and MultiNLI."},
     OnResume::refuses(RecordKind::data, kOtherRows)},
    {{.name = "quotes",
      .member = &TextFiles::quotes,
      .words = "Quoted fields of TSV files may hold tabs and line ends."},
     OnResume::refuses(RecordKind::data, kOtherRows)},
    {{.name = "data-cache-dir",
      .member = &TextFiles::data_cache_dir,
      .default_words = "tables are in memory",
      .value = "DIR",
      .words = "Keep the tables there as Arrow files that all ranks map: for data larger than memory"},
     OnResume::takes_new()},
    {{.name = "pad-to-max-length",
      .member = &TextFiles::pad_to_max_length,
      .words = "Pad every batch to --max-seq-length, not to its longest text."},
     OnResume::takes_new("results differ by rounding")},
});

using TextErrors = FlagErrors<kTextFlags, kTrainingFlags>;

/// Whether a table may lack labels.
enum class LabelColumn { required, if_there };

tables::TextTable read_table(const TextFiles& files, const std::filesystem::path& file, LabelColumn wanted) {
  tables::TextTableOptions options{.columns = {files.text_column},
                                   .skip_bad_rows = files.skip_bad_rows,
                                   .quoting = files.quoting(),
                                   .cache_dir = files.data_cache_dir};
  if (!files.text_pair_column.empty()) options.columns.push_back(files.text_pair_column);
  const auto there = wanted == LabelColumn::if_there ? tables::table_columns(file, files.quoting())
                                                     : std::vector<std::string>{files.label_column};
  if (std::find(there.begin(), there.end(), files.label_column) != there.end())
    options.columns.push_back(files.label_column);
  return tables::read_text_table(file, options);
}

struct SplitTable {
  tables::TextTable train, validation;
};

SplitTable split_table(const tables::TextTable& table, SplitSize size, size_t seed) {
  try {
    const auto rows = train_test_split(static_cast<int64_t>(table.size()), size, seed);
    return {.train = table.select(rows.train), .validation = table.select(rows.test)};
  } catch (const ValueError& error) {
    TextErrors::refuse("--validation-split of {}: {}", table.source().string(), error.what());
  }
}

}  // namespace

void TextFiles::add_flags(RecipeFlags& flags) {
  flags.begin_group("Data");
  flags.add_table<TextFiles>(kTextFlags, *this);
}

tables::Quoting TextFiles::quoting() const {
  return no_quotes ? tables::Quoting::NONE : quotes ? tables::Quoting::MINIMAL : tables::Quoting::AUTO;
}

void TextFiles::check(const TrainingArguments& args) const {
  if (quotes && no_quotes) TextErrors::refuse("--quotes and --no-quotes exclude each other; give one");
  if (train_file.empty() && validation_file.empty() && test_file.empty()) {
    TextErrors::refuse(
        "nothing to do: give --train-file, --validation-file, or --do-predict with --test-file");
  }
  if (do_predict == test_file.empty()) {
    TextErrors::refuse("--do-predict and --test-file belong together; give both or neither");
  }
  if (args.eval_strategy != IntervalStrategy::NO && validation_file.empty() && !validation_split) {
    TextErrors::refuse("--eval-strategy needs a --validation-file or a --validation-split");
  }
  struct Column {
    TextErrors::Name flag;
    const std::string* name;
  };
  const Column columns[] = {{"--text-column", &text_column},
                            {"--text-pair-column", &text_pair_column},
                            {"--label-column", &label_column}};
  for (const auto& [flag, name] : columns) {
    for (const auto& [other_flag, other_name] : columns) {
      if (name == other_name) break;
      if (!name->empty() && *name == *other_name)
        TextErrors::refuse("{} and {} are both {}; give each its own", std::string_view(other_flag),
                           std::string_view(flag), *name);
    }
  }
  if (max_seq_length == 0) TextErrors::refuse("--max-seq-length is 0; expected a number of tokens");
  if (validation_split && (train_file.empty() || !validation_file.empty())) {
    TextErrors::refuse(
        "--validation-split divides the --train-file and takes the place of a --validation-file");
  }
  if (split_seed && !validation_split)
    TextErrors::refuse("--split-seed is for --validation-split; give both");
  if (!keep_labels.empty() && !label_names.empty()) {
    TextErrors::refuse("--keep-labels and --label-names both name the labels; give one of them");
  }
  if (keep_labels.size() == 1) {
    TextErrors::refuse("--keep-labels keeps {} only; a classifier needs two labels or more",
                       quoted_if_empty(keep_labels[0]));
  }
}

TextTables TextFiles::read(const KnownLabels& known) const {
  TextTables all;
  if (!train_file.empty()) all.train = read_table(*this, train_file, LabelColumn::required);
  if (!validation_file.empty()) all.validation = read_table(*this, validation_file, LabelColumn::required);
  if (!test_file.empty()) all.test = read_table(*this, test_file, LabelColumn::if_there);
  all.train_rows_read = all.train_size();
  if (!keep_labels.empty()) {
    if (all.train) all.train = with_labels(*all.train, label_column, keep_labels, ExpectedLabels::all);
    if (all.validation) all.validation = with_labels(*all.validation, label_column, keep_labels);
  }
  all.train_rows_kept = all.train_size();
  all.labels = all.train && !keep_labels.empty() ? choose_wanted_labels(keep_labels, known)
                                                 : choose_labels(label_names, known, all.train, label_column);
  if (validation_split) {
    auto parts = split_table(*all.train, *validation_split, split_seed.value_or(42));
    all.train = std::move(parts.train);
    all.validation = std::move(parts.validation);
  }
  return all;
}

std::string TextFiles::about(const TextTables& all) const {
  auto about = fmt::format("labels {}", fmt::join(all.labels.names, ", "));
  if (all.train && !keep_labels.empty())
    about += fmt::format(" ({} of {} rows)", all.train_rows_kept, all.train_rows_read);
  for (const auto* table : {&all.train, &all.validation, &all.test}) {
    if (!*table || (*table)->skipped_rows() == 0 || (table == &all.validation && validation_split)) continue;
    about += fmt::format("\nleft out {} bad row{} of {}; the first: {}", (*table)->skipped_rows(),
                         (*table)->skipped_rows() == 1 ? "" : "s", (*table)->source().string(),
                         (*table)->first_skipped());
  }
  if (all.test && all.test->has_column(label_column) &&
      !knows_labels(*all.test, label_column, all.labels.names)) {
    about += fmt::format("\n{} has labels that the model does not know: predicted, not measured",
                         all.test->source().string());
  }
  return about;
}

int64_t TextFiles::longest_sample(int64_t positions) const {
  if (max_seq_length && *max_seq_length > static_cast<size_t>(positions)) {
    TextErrors::refuse("--max-seq-length is {}; the model has {} positions", *max_seq_length, positions);
  }
  return max_seq_length ? static_cast<int64_t>(*max_seq_length) : std::min<int64_t>(128, positions);
}

checkpoint::RunRecord TextFiles::record(const TextTables& all, int64_t positions,
                                        const checkpoint::RunRecord& saved) const {
  checkpoint::RunRecord record;
  record.set("labels", checkpoint::RecordKind::labels, all.labels.names);
  record.set("max_seq_length", checkpoint::RecordKind::flags, longest_sample(positions));
  if (all.train) record_train_data(record, all.train->fingerprint());
  record_validation_data(record, all.validation ? std::optional(all.validation->fingerprint()) : std::nullopt,
                         saved);
  return record;
}

Datasets TextFiles::datasets(const TextTables& all, const text::BertTokenizer& tokenizer,
                             int64_t positions) const {
  const TextDatasetOptions options{.max_seq_length = static_cast<size_t>(longest_sample(positions)),
                                   .pad_to_max_length = pad_to_max_length,
                                   .keep_tokens = data_cache_dir.empty()};
  const auto dataset = [&](const std::optional<tables::TextTable>& table, LabelColumn wanted) -> Dataset {
    if (!table) return {};
    TextColumns columns{.text = text_column};
    if (!text_pair_column.empty()) columns.text_pair = text_pair_column;
    // Test sets have the label -1, or none, and --keep-labels leaves other labels in: they are predicted, not measured.
    const bool is_labeled =
        wanted == LabelColumn::required ||
        (table->has_column(label_column) && knows_labels(*table, label_column, all.labels.names));
    if (is_labeled) columns.label = label_column;
    return text_dataset(*table, columns, tokenizer, all.labels.names, options);
  };
  return {.train = dataset(all.train, LabelColumn::required),
          .validation = dataset(all.validation, LabelColumn::required),
          .test = dataset(all.test, LabelColumn::if_there)};
}

}  // namespace lockstep::tasks
