#include "lockstep/zoo/tasks/bert_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <type_traits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/trainer/opened_run.h"
#include "lockstep/zoo/models/model_directory.h"
#include "lockstep/zoo/tasks/flag_errors.h"

namespace lockstep::tasks {

namespace {

using checkpoint::RecordKind;

constexpr auto kBertFlags = std::to_array<RecipeFlag<BertSource>>({
    {{.name = "model-name-or-path",
      .member = &BertSource::model_name_or_path,
      .value = "DIR",
      .words = "Directory with config.json, model.safetensors and a vocabulary"},
     OnResume::refuses(RecordKind::model,
                       "if configuration or tokenizer differ; the weights are the checkpoint's")},
    {{.name = "model-config",
      .member = &BertSource::model_config,
      .value = "WHAT",
      .words = "Train from scratch instead: small, or the path of a config.json"},
     OnResume::refuses(RecordKind::model, "if the configuration differs")},
    {{.name = "tokenizer-name",
      .member = &BertSource::tokenizer_name,
      .default_words = "--model-name-or-path",
      .words = "Directory, vocab.txt or tokenizer.json"},
     OnResume::refuses(RecordKind::model, "if the tokenizer differs")},
    {{.name = "hidden-dropout",
      .member = &BertSource::hidden_dropout,
      .default_words = "the model's hidden_dropout_prob",
      .words = "Dropout of hidden layers"},
     OnResume::refuses(RecordKind::model, "")},
    {{.name = "attention-dropout",
      .member = &BertSource::attention_dropout,
      .default_words = "the model's attention_probs_dropout_prob",
      .words = "Dropout of attention"},
     OnResume::refuses(RecordKind::model, "")},
});

constexpr auto kHeadFlags = std::to_array<RecipeFlag<BertSource>>({
    {{.name = "ignore-mismatched-sizes",
      .member = &BertSource::ignore_mismatched_sizes,
      .words = "Train a new head if the model's head does not fit the labels."},
     OnResume::keeps("the head is the checkpoint's")},
});

/// Flags of the recipes that have a BertSource, which its errors name.
constexpr auto kTheirFlags = std::to_array<std::string_view>({"train-file"});

using BertErrors = FlagErrors<kBertFlags, kHeadFlags, kTheirFlags>;
static_assert(BertErrors::has_all(kBertSourceFlags));

}  // namespace

KnownLabels read_labels(const checkpoint::Checkpoint& checkpoint) {
  const std::string path = checkpoint.path().string();
  return {.names = models::BertConfig::from_file(checkpoint.path() / "config.json").labels,
          .has_classifier = true,
          .advice = BertErrors::format(
              ", with which {} was trained. A resume cannot add labels; to begin a new run with its weights: "
              "--model-name-or-path {} --ignore-mismatched-sizes",
              path, path)};
}

void BertSource::add_flags(RecipeFlags& flags, Head head) {
  flags.begin_group("Model");
  flags.add_table<BertSource>(kBertFlags, *this);
  if (head == Head::labels) flags.add_table<BertSource>(kHeadFlags, *this);
}

void BertSource::check(Use use) const {
  if (model_name_or_path.empty() && model_config.empty()) {
    BertErrors::refuse(
        "no model: give --model-name-or-path DIR, or --model-config small to train from scratch");
  }
  if (!model_name_or_path.empty() && !model_config.empty()) {
    BertErrors::refuse("--model-name-or-path and --model-config exclude each other; give one");
  }
  if (!model_config.empty() && use == Use::prediction) {
    BertErrors::refuse("--model-config makes an untrained model; give --train-file");
  }
  if (ignore_mismatched_sizes && use == Use::prediction) {
    BertErrors::refuse("--ignore-mismatched-sizes makes an untrained head; give --train-file");
  }
  struct Dropout {
    BertErrors::Name flag;
    double value;
  };
  const Dropout dropouts[] = {{"--hidden-dropout", hidden_dropout},
                              {"--attention-dropout", attention_dropout}};
  for (const auto& [flag, value] : dropouts) {
    if (value != -1 && !(value >= 0 && value < 1)) {
      BertErrors::refuse("{} is {}; it must be in [0, 1)", std::string_view(flag), value);
    }
  }
}

void BertSource::check_directory() const {
  if (!model_name_or_path.empty()) models::check_model_directory(model_name_or_path);
}

template <class Model>
KnownLabels BertSource::known_labels() const {
  check_directory();
  if (!model_config.empty()) return {};
  const auto config = models::BertConfig::from_file(model_name_or_path / "config.json");
  const bool is_other =
      !config.architecture.empty() && config.architecture != Model::Impl::kParts.architecture;
  KnownLabels known{.names = config.labels,
                    .may_replace_head = ignore_mismatched_sizes,
                    .advice = BertErrors::format(", for which the head in {} was trained; "
                                                 "--ignore-mismatched-sizes makes a new head",
                                                 model_name_or_path.string())};
  const auto file = model_name_or_path / "model.safetensors";
  if (is_other || !std::filesystem::exists(file)) return known;  // load_model() says what is missing
  const checkpoint::SafetensorsReader reader(file);
  known.has_classifier = std::any_of(reader.entries().begin(), reader.entries().end(),
                                     [](const auto& entry) { return entry.name == "classifier.weight"; });
  return known;
}

std::filesystem::path vocabulary_path(const std::filesystem::path& output_dir, const OpenedRun* run) {
  const bool resumes = run != nullptr && run->checkpoint();
  return (resumes ? run->checkpoint()->path() : output_dir) / "vocab.txt";
}

std::filesystem::path BertSource::tokenizer_path(const std::filesystem::path& vocabulary) const {
  if (needs_vocabulary()) return vocabulary;
  return tokenizer_name.empty() ? model_name_or_path : tokenizer_name;
}

text::BertTokenizer BertSource::load_tokenizer(const std::filesystem::path& vocabulary) const {
  const auto path = tokenizer_path(vocabulary);
  return std::filesystem::is_directory(path) ? text::BertTokenizer::from_directory(path)
                                             : text::BertTokenizer::from_file(path);
}

template <class Model>
models::BertConfig BertSource::new_config(const std::vector<std::string>& labels,
                                          const text::BertTokenizer& tokenizer) const {
  auto config =
      model_config == "small" ? models::BertConfig::small() : models::BertConfig::from_file(model_config);
  if (model_config == "small") config.vocab_size = tokenizer.vocab_size();
  if (!labels.empty()) config.labels = labels;
  if (!std::is_same_v<Model, models::BertForSequenceClassification>) {
    config.problem_type.clear();
  } else if (!config.is_single_label(/*has_head=*/false)) {
    throw ValueError(fmt::format(
        "{}: problem_type is \"{}\"; this program trains single_label_classification: change it or take it out",
        model_config, config.problem_type));
  }
  return config;
}

void BertSource::finish(models::BertWithHeadImpl& model, const text::BertTokenizer& tokenizer,
                        const std::filesystem::path& vocabulary) const {
  const auto& config = model.config();
  models::check_vocab_fits(config, tokenizer.vocab_size(), tokenizer_path(vocabulary));
  model.set_dropout(hidden_dropout < 0 ? config.hidden_dropout_prob : hidden_dropout,
                    attention_dropout < 0 ? config.attention_probs_dropout_prob : attention_dropout);
}

template <class Model>
Model BertSource::load_model(const ChosenLabels& labels, const text::BertTokenizer& tokenizer,
                             const std::filesystem::path& vocabulary, Use use) const {
  auto model = model_config.empty()
                   ? models::load_bert<Model>(model_name_or_path, labels.names,
                                              {.ignore_mismatched_sizes = ignore_mismatched_sizes,
                                               .new_head = labels.new_head,
                                               .needs_head = use == Use::prediction})
                   : Model(new_config<Model>(labels.names, tokenizer));
  finish(*model, tokenizer, vocabulary);
  return model;
}

template <class Model>
Model BertSource::make_model(const std::vector<std::string>& labels, const text::BertTokenizer& tokenizer,
                             const std::filesystem::path& vocabulary) const {
  auto config = model_config.empty()
                    ? models::load_bert_config<Model>(model_name_or_path, labels,
                                                      {.ignore_mismatched_sizes = ignore_mismatched_sizes})
                    : new_config<Model>(labels, tokenizer);
  Model model(std::move(config), typename Model::Impl::Uninitialized{});
  finish(*model, tokenizer, vocabulary);
  return model;
}

template KnownLabels BertSource::known_labels<models::BertForSequenceClassification>() const;
template KnownLabels BertSource::known_labels<models::BertForTokenClassification>() const;
template models::BertForSequenceClassification BertSource::load_model(const ChosenLabels&,
                                                                      const text::BertTokenizer&,
                                                                      const std::filesystem::path&,
                                                                      Use) const;
template models::BertForTokenClassification BertSource::load_model(const ChosenLabels&,
                                                                   const text::BertTokenizer&,
                                                                   const std::filesystem::path&, Use) const;
template models::BertForQuestionAnswering BertSource::load_model(const ChosenLabels&,
                                                                 const text::BertTokenizer&,
                                                                 const std::filesystem::path&, Use) const;
template models::BertForSequenceClassification BertSource::make_model(const std::vector<std::string>&,
                                                                      const text::BertTokenizer&,
                                                                      const std::filesystem::path&) const;
template models::BertForTokenClassification BertSource::make_model(const std::vector<std::string>&,
                                                                   const text::BertTokenizer&,
                                                                   const std::filesystem::path&) const;
template models::BertForQuestionAnswering BertSource::make_model(const std::vector<std::string>&,
                                                                 const text::BertTokenizer&,
                                                                 const std::filesystem::path&) const;

}  // namespace lockstep::tasks
