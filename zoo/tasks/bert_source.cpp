#include "lockstep/zoo/tasks/bert_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/zoo/models/model_directory.h"

namespace lockstep::tasks {

void BertSource::add_flags(CommandLine program) {
  program.begin_group("Model");
  program
      .add_option("--model-name-or-path", model_name_or_path,
                  "Directory with config.json, model.safetensors and a vocabulary")
      .type_name("DIR");
  program
      .add_option("--model-config", model_config,
                  "Train from scratch instead: small, or the path of a config.json")
      .type_name("WHAT");
  program.add_option("--tokenizer-name", tokenizer_name, "Directory, vocab.txt or tokenizer.json")
      .default_text("--model-name-or-path");
  program.add_option("--hidden-dropout", hidden_dropout, "Dropout of hidden layers")
      .default_text("the model's hidden_dropout_prob");
  program.add_option("--attention-dropout", attention_dropout, "Dropout of attention")
      .default_text("the model's attention_probs_dropout_prob");
}

void BertSource::check(Use use) const {
  if (model_name_or_path.empty() && model_config.empty()) {
    throw ValueError(
        "no model: give --model-name-or-path DIR, or --model-config small to train from scratch");
  }
  if (!model_name_or_path.empty() && !model_config.empty()) {
    throw ValueError("--model-name-or-path and --model-config exclude each other; give one");
  }
  if (!model_config.empty() && use == Use::prediction) {
    throw ValueError("--model-config makes a model that knows nothing; give --train-file");
  }
  for (const auto& [flag, value] :
       {std::pair{"--hidden-dropout", hidden_dropout}, std::pair{"--attention-dropout", attention_dropout}}) {
    if (value != -1 && !(value >= 0 && value < 1)) {
      throw ValueError(fmt::format("{} is {}; it must be in [0, 1)", flag, value));
    }
  }
}

KnownLabels BertSource::known_labels() const {
  if (!model_name_or_path.empty()) models::check_model_directory(model_name_or_path);
  if (!model_config.empty()) return {};
  KnownLabels known{.names = models::BertConfig::from_file(model_name_or_path / "config.json").labels};
  const auto file = model_name_or_path / "model.safetensors";
  if (!std::filesystem::exists(file)) return known;  // load_model() says what is missing
  const checkpoint::SafetensorsReader reader(file);
  known.has_classifier = std::any_of(reader.entries().begin(), reader.entries().end(),
                                     [](const auto& entry) { return entry.name == "classifier.weight"; });
  return known;
}

text::BertTokenizer BertSource::load_tokenizer(const std::filesystem::path& vocabulary) const {
  const auto path = needs_vocabulary()       ? vocabulary
                    : tokenizer_name.empty() ? model_name_or_path
                                             : tokenizer_name;
  return std::filesystem::is_directory(path) ? text::BertTokenizer::from_directory(path)
                                             : text::BertTokenizer::from_file(path);
}

models::BertForSequenceClassification BertSource::load_model(const std::vector<std::string>& labels,
                                                             const text::BertTokenizer& tokenizer,
                                                             const std::filesystem::path& vocabulary) const {
  models::BertForSequenceClassification model{nullptr};
  if (model_config.empty()) {
    model = models::load_bert_classifier(model_name_or_path, labels);
  } else {
    auto config =
        model_config == "small" ? models::BertConfig::small() : models::BertConfig::from_file(model_config);
    if (model_config == "small") config.vocab_size = tokenizer.vocab_size();
    config.labels = labels;
    model = models::BertForSequenceClassification(config);
  }
  const auto& config = model->config();
  const auto path = needs_vocabulary()       ? vocabulary
                    : tokenizer_name.empty() ? model_name_or_path
                                             : tokenizer_name;
  models::check_vocab_fits(config, tokenizer.vocab_size(), path);
  model->set_dropout(hidden_dropout < 0 ? config.hidden_dropout_prob : hidden_dropout,
                     attention_dropout < 0 ? config.attention_probs_dropout_prob : attention_dropout);
  return model;
}

}  // namespace lockstep::tasks
