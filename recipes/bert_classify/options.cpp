#include "recipes/bert_classify/options.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/trainer/flags.h"

namespace {

void add_flags(lockstep::CommandLine program, Options& o) {
  program.add_example(
      "Fine-tune on two ranks and evaluate",
      "lockrun --nproc-per-node 2 bert_classify --model-name-or-path DIR --train-file train.csv "
      "--validation-file validation.csv --output-dir out");
  program.add_example(
      "Label new texts with the result",
      "bert_classify --model-name-or-path out --do-predict --test-file new.csv --output-dir new");
  program.begin_group("Model");
  program
      .add_option("--model-name-or-path", o.model_name_or_path,
                  "Directory with config.json, model.safetensors and a vocabulary")
      .type_name("DIR");
  program
      .add_option("--model-config", o.model_config,
                  "Train from scratch instead: small, or the path of a config.json")
      .type_name("WHAT");
  program.add_option("--tokenizer-name", o.tokenizer_name, "Directory, vocab.txt or tokenizer.json")
      .default_text("--model-name-or-path");
  program.add_option("--max-seq-length", o.max_seq_length, "Longer texts are cut to this many tokens")
      .default_text("128, or what the model takes");
  program.add_option("--hidden-dropout", o.hidden_dropout, "Dropout of hidden layers")
      .default_text("the model's hidden_dropout_prob");
  program.add_option("--attention-dropout", o.attention_dropout, "Dropout of attention")
      .default_text("the model's attention_probs_dropout_prob");
  program.begin_group("Data");
  program.add_option("--train-file", o.train_file, "CSV or TSV file with a header line").type_name("FILE");
  program
      .add_option("--validation-file", o.validation_file,
                  "Evaluated after training, and during it as --eval-strategy says")
      .type_name("FILE");
  program.add_option("--test-file", o.test_file, "Labelled with --do-predict").type_name("FILE");
  program.add_flag("--do-predict", o.do_predict, "Write OUTPUT_DIR/predictions.jsonl for --test-file.");
  program.add_option("--text-column", o.text_column, "Column of the text").with_default();
  program.add_option("--text-pair-column", o.text_pair_column, "Column of the second text of a pair");
  program.add_option("--label-column", o.label_column, "Column of the label: numbers or names")
      .with_default();
  program.add_option("--label-names", o.label_names, "Names of the labels by number, with commas between")
      .with_commas();
  program
      .add_option("--log-sample-ids", o.log_sample_ids, "Write the rows of every step and rank to this file")
      .type_name("FILE");
  lockstep::add_training_flags(program, o.training);
}

void validate(const Options& o) {
  o.training.validate();
  if (o.model_name_or_path.empty() && o.model_config.empty()) {
    throw lockstep::ValueError(
        "no model: give --model-name-or-path DIR, or --model-config small to train from scratch");
  }
  if (!o.model_name_or_path.empty() && !o.model_config.empty()) {
    throw lockstep::ValueError("--model-name-or-path and --model-config exclude each other; give one");
  }
  if (o.train_file.empty() && o.validation_file.empty() && o.test_file.empty()) {
    throw lockstep::ValueError(
        "nothing to do: give --train-file, --validation-file, or --do-predict with --test-file");
  }
  if (o.do_predict == o.test_file.empty()) {
    throw lockstep::ValueError("--do-predict and --test-file belong together; give both or neither");
  }
  if (o.training.eval_strategy != lockstep::IntervalStrategy::NO && o.validation_file.empty()) {
    throw lockstep::ValueError("--eval-strategy needs a --validation-file");
  }
  if (!o.model_config.empty() && o.train_file.empty()) {
    throw lockstep::ValueError("--model-config makes a model that knows nothing; give --train-file");
  }
  for (const auto& [flag, value] : {std::pair{"--hidden-dropout", o.hidden_dropout},
                                    std::pair{"--attention-dropout", o.attention_dropout}}) {
    if (value != -1 && !(value >= 0 && value < 1)) {
      throw lockstep::ValueError(fmt::format("{} is {}; it must be in [0, 1)", flag, value));
    }
  }
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options o;
  const bool go_on = lockstep::parse_command_line(
      "bert_classify", "Fine-tunes a BERT-type model to classify texts, evaluates it and labels new texts",
      [&](lockstep::CommandLine program) { add_flags(program, o); }, argc, argv);
  if (!go_on) return std::nullopt;
  validate(o);
  return o;
}
