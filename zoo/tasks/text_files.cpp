#include "lockstep/zoo/tasks/text_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "lockstep/base/error.h"

namespace lockstep::tasks {

namespace {

// "0.1": a share; "500": so many.
SplitSize split_size(const std::string& text) {
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
  throw ValueError(
      fmt::format("--validation-split is {}; expected a share between 0 and 1 or a number of rows", text));
}

}  // namespace

void TextFiles::add_flags(CommandLine program) {
  program.begin_group("Data");
  program
      .add_option("--train-file", train_file,
                  "CSV or TSV with a header line, JSON lines (.jsonl), Parquet or Arrow")
      .type_name("FILE");
  program
      .add_option("--validation-file", validation_file,
                  "Evaluated after training, and during it as --eval-strategy says")
      .type_name("FILE");
  program
      .add_option(
          "--validation-split", [this](const std::string& text) { validation_split = split_size(text); },
          "Instead of a --validation-file: this share of the training file, as 0.1, or so many of its rows")
      .type_name("SIZE");
  program.add_option("--split-seed", split_seed, "Seed of --validation-split").default_text("42");
  program.add_option("--test-file", test_file, "Labelled with --do-predict").type_name("FILE");
  program.add_flag("--do-predict", do_predict, "Write OUTPUT_DIR/predictions.jsonl for --test-file.");
  program.add_option("--text-column", text_column, "Column of the text").with_default();
  program.add_option("--text-pair-column", text_pair_column, "Column of the second text of a pair");
  program.add_option("--label-column", label_column, "Column of the label: numbers or names").with_default();
  program.add_option("--label-names", label_names, "Names of the labels by number, with commas between")
      .with_commas();
  program
      .add_option(
          "--keep-labels", keep_labels,
          "Leave out rows with other labels, but for --test-file. A new classifier has these, in this order")
      .with_commas();
  program.add_option("--max-seq-length", max_seq_length, "Longer texts are cut to this many tokens")
      .default_text("128, or what the model takes");
  program.add_flag("--skip-bad-rows", skip_bad_rows, "Leave out rows that cannot be read, and count them.");
  program
      .add_option("--data-cache-dir", data_cache_dir,
                  "Keep the tables there as Arrow files that all ranks map: for data larger than memory")
      .type_name("DIR")
      .default_text("tables are in memory");
  program.add_flag("--pad-to-max-length", pad_to_max_length,
                   "Pad every batch to --max-seq-length, not to its longest text.");
}

void TextFiles::check(const TrainingArguments& args) const {
  if (train_file.empty() && validation_file.empty() && test_file.empty()) {
    throw ValueError("nothing to do: give --train-file, --validation-file, or --do-predict with --test-file");
  }
  if (do_predict == test_file.empty()) {
    throw ValueError("--do-predict and --test-file belong together; give both or neither");
  }
  if (args.eval_strategy != IntervalStrategy::NO && validation_file.empty() && !validation_split) {
    throw ValueError("--eval-strategy needs a --validation-file or a --validation-split");
  }
  const std::pair<const char*, const std::string*> columns[] = {{"--text-column", &text_column},
                                                                {"--text-pair-column", &text_pair_column},
                                                                {"--label-column", &label_column}};
  for (const auto& [flag, name] : columns) {
    for (const auto& [other_flag, other_name] : columns) {
      if (flag == other_flag) break;
      if (!name->empty() && *name == *other_name)
        throw ValueError(fmt::format("{} and {} are both {}; give each its own", other_flag, flag, *name));
    }
  }
  if (max_seq_length == 0) throw ValueError("--max-seq-length is 0; expected a number of tokens");
  if (validation_split && (train_file.empty() || !validation_file.empty())) {
    throw ValueError(
        "--validation-split divides the --train-file and takes the place of a --validation-file");
  }
  if (split_seed && !validation_split) throw ValueError("--split-seed is for --validation-split; give both");
  if (!keep_labels.empty() && !label_names.empty()) {
    throw ValueError("--keep-labels and --label-names both name the labels; give one of them");
  }
  if (keep_labels.size() == 1) {
    throw ValueError(
        fmt::format("--keep-labels keeps {} only; a classifier needs two labels or more", keep_labels[0]));
  }
}

void TextFiles::read(const std::vector<std::string>& known, bool is_classifier) {
  if (!train_file.empty()) train = read_table(train_file, false);
  if (!validation_file.empty()) validation = read_table(validation_file, false);
  if (!test_file.empty()) test = read_table(test_file, true);
  if (!keep_labels.empty()) leave_out_labels();
  std::vector<std::string> given = label_names;
  if (train && !keep_labels.empty()) {
    // A trained classifier keeps its order.
    const bool are_known = is_classifier ? are_same_labels(keep_labels, known)
                                         : std::is_permutation(keep_labels.begin(), keep_labels.end(),
                                                               known.begin(), known.end());
    given = are_known ? known : keep_labels;
  }
  labels = choose_labels(given, known, train, label_column);
  if (validation_split) split_train();
}

tables::TextTable TextFiles::read_table(const std::filesystem::path& file, bool is_test) const {
  tables::TextTableOptions options{
      .columns = {text_column}, .skip_bad_rows = skip_bad_rows, .cache_dir = data_cache_dir};
  if (!text_pair_column.empty()) options.columns.push_back(text_pair_column);
  const auto there = is_test ? tables::table_columns(file) : std::vector<std::string>{label_column};
  const bool has_label = std::find(there.begin(), there.end(), label_column) != there.end();
  if (has_label) options.columns.push_back(label_column);
  return tables::read_text_table(file, options);
}

void TextFiles::leave_out_labels() {
  if (train) {
    rows_before_ = train->size();
    train = with_labels(*train, label_column, keep_labels, true);
    rows_kept_ = train->size();
  }
  if (validation) validation = with_labels(*validation, label_column, keep_labels);
}

void TextFiles::split_train() {
  try {
    const auto rows =
        train_test_split(static_cast<int64_t>(train->size()), *validation_split, split_seed.value_or(42));
    validation = train->select(rows.test);
    train = train->select(rows.train);
  } catch (const ValueError& error) {
    throw ValueError(fmt::format("--validation-split of {}: {}", train_file.string(), error.what()));
  }
}

// Test sets have the label -1, or none, and --keep-labels leaves other labels in: they are predicted, not measured.
bool TextFiles::knows_labels(const tables::TextTable& table) const {
  if (std::set(labels.begin(), labels.end()).size() != labels.size())
    return true;  // whoever uses them says so
  try {
    label_ids(table, label_column, labels);
    return true;
  } catch (const ValueError&) {
    return false;
  }
}

std::string TextFiles::about() const {
  auto about = fmt::format("labels {}", fmt::join(labels, ", "));
  if (rows_before_ > 0) about += fmt::format(" ({} of {} rows)", rows_kept_, rows_before_);
  for (const auto* table : {&train, &validation, &test}) {
    if (!*table || (*table)->skipped_rows() == 0 || (table == &validation && validation_split)) continue;
    about += fmt::format("\nleft out {} bad row{} of {}; the first: {}", (*table)->skipped_rows(),
                         (*table)->skipped_rows() == 1 ? "" : "s", (*table)->source().string(),
                         (*table)->first_skipped());
  }
  if (test && test->has_column(label_column) && !knows_labels(*test)) {
    about += fmt::format("\n{} has labels that the model does not know: predicted, not measured",
                         test->source().string());
  }
  return about;
}

Dataset TextFiles::dataset(const std::optional<tables::TextTable>& table,
                           const text::BertTokenizer& tokenizer, int64_t positions) const {
  if (!table) return {};
  if (max_seq_length && *max_seq_length > static_cast<size_t>(positions)) {
    throw ValueError(
        fmt::format("--max-seq-length is {}; the model has {} positions", *max_seq_length, positions));
  }
  const size_t length = max_seq_length.value_or(static_cast<size_t>(std::min<int64_t>(128, positions)));
  TextColumns columns{.text = text_column};
  if (!text_pair_column.empty()) columns.text_pair = text_pair_column;
  const bool is_test = test && &*test == &*table;
  const bool is_labelled = !is_test || (table->has_column(label_column) && knows_labels(*table));
  if (is_labelled) columns.label = label_column;
  return text_dataset(*table, columns, tokenizer, length, labels, pad_to_max_length, data_cache_dir.empty());
}

}  // namespace lockstep::tasks
