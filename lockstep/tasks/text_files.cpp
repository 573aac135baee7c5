#include "lockstep/tasks/text_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {

void TextFiles::add_flags(CommandLine program) {
  program.begin_group("Data");
  program.add_option("--train-file", train_file, "CSV or TSV file with a header line").type_name("FILE");
  program
      .add_option("--validation-file", validation_file,
                  "Evaluated after training, and during it as --eval-strategy says")
      .type_name("FILE");
  program.add_option("--test-file", test_file, "Labelled with --do-predict").type_name("FILE");
  program.add_flag("--do-predict", do_predict, "Write OUTPUT_DIR/predictions.jsonl for --test-file.");
  program.add_option("--text-column", text_column, "Column of the text").with_default();
  program.add_option("--text-pair-column", text_pair_column, "Column of the second text of a pair");
  program.add_option("--label-column", label_column, "Column of the label: numbers or names").with_default();
  program.add_option("--label-names", label_names, "Names of the labels by number, with commas between")
      .with_commas();
  program.add_option("--max-seq-length", max_seq_length, "Longer texts are cut to this many tokens")
      .default_text("128, or what the model takes");
}

void TextFiles::check(const TrainingArguments& args) const {
  if (train_file.empty() && validation_file.empty() && test_file.empty()) {
    throw ValueError("nothing to do: give --train-file, --validation-file, or --do-predict with --test-file");
  }
  if (do_predict == test_file.empty()) {
    throw ValueError("--do-predict and --test-file belong together; give both or neither");
  }
  if (args.eval_strategy != IntervalStrategy::NO && validation_file.empty()) {
    throw ValueError("--eval-strategy needs a --validation-file");
  }
}

void TextFiles::read(const std::vector<std::string>& known) {
  const auto open = [](const std::filesystem::path& file, auto& table) {
    if (!file.empty()) table = read_text_table(file);
  };
  open(train_file, train);
  open(validation_file, validation);
  open(test_file, test);
  labels = choose_labels(label_names, known, train, label_column);
}

Dataset TextFiles::dataset(const std::optional<TextTable>& table, const BertTokenizer& tokenizer,
                           int64_t positions) const {
  if (!table) return {};
  if (max_seq_length && *max_seq_length > static_cast<size_t>(positions)) {
    throw ValueError(
        fmt::format("--max-seq-length is {}; the model has {} positions", *max_seq_length, positions));
  }
  const size_t length = max_seq_length.value_or(static_cast<size_t>(std::min<int64_t>(128, positions)));
  TextColumns columns{.text = text_column};
  if (!text_pair_column.empty()) columns.text_pair = text_pair_column;
  const bool is_test = test && &*test == &*table;
  if (!is_test || table->has_column(label_column)) columns.label = label_column;
  return text_dataset(*table, columns, tokenizer, length, labels);
}

}  // namespace lockstep
