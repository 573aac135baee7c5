#include "recipes/bert_classify/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/trainer/flags.h"

namespace {

void add_flags(CLI::App& app, Options& o) {
  app.add_option("--model-name-or-path", o.model_name_or_path,
                 "Directory with config.json, model.safetensors and a vocabulary");
  app.add_option("--model-config", o.model_config, "Train from scratch instead: \"small\", or a config.json");
  app.add_option("--tokenizer-name", o.tokenizer_name,
                 "Directory, vocab.txt or tokenizer.json [--model-name-or-path]");
  app.add_option("--train-file", o.train_file, "CSV or TSV file with a header line");
  app.add_option("--validation-file", o.validation_file,
                 "Evaluated after training, and during it as --eval-strategy says");
  app.add_option("--test-file", o.test_file, "With --do-predict");
  app.add_flag("--do-predict", o.do_predict, "Write OUTPUT_DIR/predictions.jsonl for --test-file");
  app.add_option("--text-column", o.text_column, "Column of the text")->capture_default_str();
  app.add_option("--text-pair-column", o.text_pair_column, "Column of the second text of a pair");
  app.add_option("--label-column", o.label_column, "Column of the label: numbers or names")
      ->capture_default_str();
  app.add_option("--label-names", o.label_names, "Names by id, with commas between")->delimiter(',');
  app.add_option("--max-seq-length", o.max_seq_length,
                 "Longer texts are cut to this many tokens [128, or what the model takes]");
  app.add_option("--hidden-dropout", o.hidden_dropout, "Instead of the model's hidden_dropout_prob");
  app.add_option("--attention-dropout", o.attention_dropout, "Instead of its attention_probs_dropout_prob");
  app.add_option("--log-sample-ids", o.log_sample_ids, "Write the rows of every step and rank to this file");
  lockstep::trainer::add_training_flags(app, o.training);
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
  if (o.training.eval_strategy != lockstep::trainer::IntervalStrategy::NO && o.validation_file.empty()) {
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
  CLI::App app("Fine-tunes a BERT-type model to classify texts, evaluates it, labels new texts.",
               "bert_classify");
  add_flags(app, o);
  try {
    app.parse(lockstep::trainer::normalized_arguments(argc, argv));
  } catch (const CLI::CallForHelp&) {
    if (lockstep::env::get_int(lockstep::env::kRank).value_or(0) == 0) fmt::print("{}", app.help());
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw lockstep::ValueError(error.what());
  }
  validate(o);
  return o;
}
