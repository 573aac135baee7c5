// Fine-tunes a BERT-type model to label the words of sentences, such as the names in them, evaluates it and labels new
// sentences; on one process, or on many under lockrun or torchrun.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/trainer/opened_run.h"
#include "lockstep/zoo/tasks/bert_run.h"
#include "lockstep/zoo/tasks/recipe.h"
#include "lockstep/zoo/tasks/token_files.h"
#include "lockstep/zoo/text/metrics/entity_scores.h"

namespace {

using namespace lockstep;

using Arguments = tasks::BertArguments<tasks::TokenFiles>;
using Classifier = models::BertForTokenClassification;
using Model = tasks::BertModel<Classifier>;

constexpr tasks::BertRecipe kRecipe{
    .name = "bert_ner",
    .description = "Fine-tunes a BERT-type model to label words, evaluates it and labels new sentences",
    .train_example =
        "lockrun --nproc-per-node 2 bert_ner --model-name-or-path DIR --train-file train.conll "
        "--validation-file valid.conll --output-dir out",
    .predict_does = "Label new sentences with the result",
    .predict_example =
        "bert_ner --model-name-or-path out --do-predict --test-file new.conll --output-dir new"};

using Samples = std::shared_ptr<const std::vector<tasks::TokenSample>>;

/// The sentences as tokens; null: none.
struct AllSamples {
  Samples train{}, validation{}, test{};
};

AllSamples encode(const Arguments& args, const tasks::TokenSentences& sentences, const Model& model) {
  const auto make = [&](const std::optional<tasks::LabeledSentences>& some) -> Samples {
    if (!some) return nullptr;
    return std::make_shared<const std::vector<tasks::TokenSample>>(
        args.files.encode(*some, sentences.labels.names, model.tokenizer, model.positions()));
  };
  return {
      .train = make(sentences.train), .validation = make(sentences.validation), .test = make(sentences.test)};
}

tasks::Datasets datasets(const Arguments& args, const AllSamples& samples, const Model& model) {
  const auto make = [&](const Samples& some) {
    return some == nullptr ? Dataset{} : args.files.dataset(some, model.tokenizer, model.positions());
  };
  return {.train = make(samples.train), .validation = make(samples.validation), .test = make(samples.test)};
}

/// The labels, and what of each file is left out or not measured.
std::string about(const tasks::TokenSentences& sentences, const AllSamples& samples) {
  auto text = fmt::format("labels {}", fmt::join(sentences.labels.names, ", "));
  const auto add = [&](const std::optional<tasks::LabeledSentences>& some, const Samples& encoded) {
    if (!some) return;
    if (some->skipped_rows > 0) {
      text += fmt::format("\nleft out {} bad row{} of {}; the first: {}", some->skipped_rows,
                          some->skipped_rows == 1 ? "" : "s", some->source.string(), some->first_skipped);
    }
    if (const int64_t words = tasks::count_unlabeled_words(*encoded); words > 0) {
      text += fmt::format(
          "\n{}: {} word{} without a label, behind --max-seq-length or of characters that the "
          "tokenizer drops",
          some->source.string(), words, words == 1 ? "" : "s");
    }
    if (some->have_labels && encoded->front().labels.empty())
      text += fmt::format("\n{} has labels that the model does not know: predicted, not measured",
                          some->source.string());
  };
  add(sentences.train, samples.train);
  add(sentences.validation, samples.validation);
  add(sentences.test, samples.test);
  return text;
}

void warn_of_labels(const std::vector<std::string>& labels) {
  const auto unusual = text::find_unusual_labels(labels);
  if (unusual.empty()) return;
  log::warning(
      fmt::format("labels {} are neither O nor B-, I-, E- or S- and a type; the entity scores may mean "
                  "nothing",
                  fmt::join(unusual, ", ")));
}

int run(int argc, char** argv) {
  Arguments args;
  const auto recipe = tasks::start_bert(kRecipe, args, argc, argv);
  if (!recipe) return 0;
  const World& world = recipe->world;

  std::optional<OpenedRun> run = tasks::open_bert_run(args, world);
  const bool resumes = run && run->checkpoint();
  const tasks::TokenSentences sentences = on_all_ranks(world, [&] {
    return args.files.read(resumes ? tasks::read_labels(*run->checkpoint())
                                   : args.source.known_labels<Classifier>());
  });
  const auto words = [&] {
    std::vector<std::string_view> words;
    for (const auto& sentence : sentences.train->sentences)
      words.insert(words.end(), sentence.words.begin(), sentence.words.end());
    return words;
  };
  const auto record = [&](int64_t positions, const checkpoint::RunRecord& saved) {
    return args.files.record(sentences, positions, saved);
  };
  auto beginning = tasks::begin_bert<Classifier>(
      *recipe, args, run,
      {.labels = sentences.labels, .train_size = sentences.train_size(), .words = words, .record = record});
  const Model& model = beginning.model;
  const AllSamples samples = on_all_ranks(world, [&] { return encode(args, sentences, model); });
  const tasks::Datasets data = datasets(args, samples, model);

  if (world.rank() == 0) {
    warn_of_labels(sentences.labels.names);
    const auto size = tasks::parameters_in_words(*model.net);
    tasks::print_start(*recipe, args.training, data.train.size,
                       fmt::format("{}, {}", size, about(sentences, samples)));
  }
  auto options = tasks::bert_options(model, data);
  options.metrics = args.files.metrics(model.net->config().labels);
  options.on_samples = tasks::log_samples(*recipe);
  options.record = std::move(beginning.record);
  options.opened_run = std::move(run);
  Trainer trainer(model.net, args.training, world, std::move(options));
  tasks::train_and_test(*recipe, trainer, data, [&](const Trainer::Prediction& prediction) {
    tasks::write_token_predictions(args.training.output_dir / "predictions.jsonl", *sentences.test,
                                   *samples.test, prediction.outputs, sentences.labels.names);
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::tasks::run_recipe("bert_ner", [&] { return run(argc, argv); });
}
