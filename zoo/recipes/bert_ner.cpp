// Fine-tunes a BERT-type model to label the words of sentences, such as the names in them, evaluates it and labels new
// sentences; on one process, or on many under lockrun or torchrun.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/trainer/opened_run.h"
#include "lockstep/zoo/tasks/bert_source.h"
#include "lockstep/zoo/tasks/recipe.h"
#include "lockstep/zoo/tasks/record_entries.h"
#include "lockstep/zoo/tasks/token_files.h"
#include "lockstep/zoo/text/build_vocab.h"
#include "lockstep/zoo/text/metrics/entity_scores.h"

namespace {

using namespace lockstep;

struct Arguments {
  tasks::BertSource source{};
  tasks::TokenFiles files{};
  TrainingArguments training{};
};

struct Model {
  text::BertTokenizer tokenizer;
  models::BertForTokenClassification classifier;
};

using Samples = std::shared_ptr<const std::vector<tasks::TokenSample>>;

/// The sentences as tokens; null: none.
struct AllSamples {
  Samples train{}, validation{}, test{};
};

void add_flags(tasks::RecipeFlags& flags, Arguments& args) {
  flags.add_example("Fine-tune on two ranks and evaluate",
                    "lockrun --nproc-per-node 2 bert_ner --model-name-or-path DIR --train-file train.conll "
                    "--validation-file valid.conll --output-dir out");
  flags.add_example("Label new sentences with the result",
                    "bert_ner --model-name-or-path out --do-predict --test-file new.conll --output-dir new");
  args.source.add_flags(flags);
  args.files.add_flags(flags);
}

tasks::BertSource::Use use_of(const Arguments& args) {
  using Use = tasks::BertSource::Use;
  return args.files.train_file.empty() ? Use::prediction : Use::training;
}

void check(const Arguments& args) {
  args.source.check(use_of(args));
  args.files.check(args.training);
}

/// For a model that is trained from scratch.
void write_vocabulary(const Arguments& args, const tasks::TokenSentences& sentences) {
  if (!args.source.needs_vocabulary()) return;
  std::vector<std::string_view> words;
  for (const auto& sentence : sentences.train->sentences)
    words.insert(words.end(), sentence.words.begin(), sentence.words.end());
  text::write_vocab(tasks::vocabulary_path(args.training.output_dir, nullptr), text::build_vocab(words));
}

Model load(const Arguments& args, const tasks::TokenSentences& sentences, const OpenedRun* run) {
  using Classifier = models::BertForTokenClassification;
  at::manual_seed(args.training.seed);  // of new weights
  const auto vocabulary = tasks::vocabulary_path(args.training.output_dir, run);
  auto tokenizer = args.source.load_tokenizer(vocabulary);
  auto classifier =
      run != nullptr && run->checkpoint()
          ? args.source.make_model<Classifier>(sentences.labels.names, tokenizer, vocabulary)
          : args.source.load_model<Classifier>(sentences.labels, tokenizer, vocabulary, use_of(args));
  return {std::move(tokenizer), std::move(classifier)};
}

/// What gives the weights their meaning.
checkpoint::RunRecord make_record(const tasks::RecipeRun& recipe, const Arguments& args, const Model& model,
                                  const tasks::TokenSentences& sentences, const OpenedRun& run) {
  const auto& config = model.classifier->config();
  auto record = recipe.flags;
  record.add(args.files.record(sentences, config.max_position_embeddings, run.record()));
  tasks::record_tokenizer(record, "tokenizer", model.tokenizer.files(), model.tokenizer.vocab_size());
  tasks::record_model_config(record, config.to_json(),
                             {"architectures", "id2label", "label2id", "problem_type"});
  return record;
}

AllSamples encode(const Arguments& args, const tasks::TokenSentences& sentences, const Model& model) {
  const auto make = [&](const std::optional<tasks::LabelledSentences>& some) -> Samples {
    if (!some) return nullptr;
    return std::make_shared<const std::vector<tasks::TokenSample>>(args.files.encode(
        *some, sentences.labels.names, model.tokenizer, model.classifier->config().max_position_embeddings));
  };
  return {
      .train = make(sentences.train), .validation = make(sentences.validation), .test = make(sentences.test)};
}

tasks::Datasets datasets(const Arguments& args, const AllSamples& samples, const Model& model) {
  const auto make = [&](const Samples& some) {
    return some == nullptr ? Dataset{}
                           : args.files.dataset(some, model.tokenizer,
                                                model.classifier->config().max_position_embeddings);
  };
  return {.train = make(samples.train), .validation = make(samples.validation), .test = make(samples.test)};
}

/// The labels, and what of each file is left out or not measured.
std::string about(const tasks::TokenSentences& sentences, const AllSamples& samples) {
  auto text = fmt::format("labels {}", fmt::join(sentences.labels.names, ", "));
  const auto add = [&](const std::optional<tasks::LabelledSentences>& some, const Samples& encoded) {
    if (!some) return;
    if (some->skipped_rows > 0) {
      text += fmt::format("\nleft out {} bad row{} of {}; the first: {}", some->skipped_rows,
                          some->skipped_rows == 1 ? "" : "s", some->source.string(), some->first_skipped);
    }
    if (const int64_t words = tasks::count_unlabelled_words(*encoded); words > 0) {
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

TrainerOptions<models::BertForTokenClassification> trainer_options(const Arguments& args, const Model& model,
                                                                   const tasks::Datasets& data) {
  const auto forward = [](auto& classifier, const Batch& batch) {
    return classifier(
        models::BertBatch{batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]});
  };
  const auto model_files = [&model] {
    auto files = model.tokenizer.files();
    files["config.json"] = model.classifier->config().to_json();
    return files;
  };
  return {.train_dataset = data.train,
          .eval_dataset = data.validation,
          .forward = forward,
          .metrics = args.files.metrics(model.classifier->config().labels),
          .model_files = model_files};
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
  const auto recipe = tasks::start_recipe(
      {.name = "bert_ner",
       .description = "Fine-tunes a BERT-type model to label words, evaluates it and labels new sentences",
       .add_flags = [&](tasks::RecipeFlags& flags) { add_flags(flags, args); },
       .check_flags = [&] { check(args); }},
      args.training, argc, argv);
  if (!recipe) return 0;
  const World& world = recipe->world;

  std::optional<OpenedRun> run;  // of a training
  if (!args.files.train_file.empty()) run = open_run(args.training, world);
  const bool resumes = run && run->checkpoint();
  const tasks::TokenSentences sentences = on_all_ranks(world, [&] {
    return args.files.read(resumes ? tasks::labels_of(*run->checkpoint())
                                   : args.source.known_labels<models::BertForTokenClassification>());
  });
  const auto write_output_dir = [&] {
    tasks::make_output_dir(*recipe, args.training, sentences.train_size(), [&] {
      if (!resumes) write_vocabulary(args, sentences);
    });
  };
  if (!resumes) write_output_dir();
  const Model model = on_all_ranks(world, [&] { return load(args, sentences, run ? &*run : nullptr); });
  checkpoint::RunRecord record;
  if (run) record = on_all_ranks(world, [&] { return make_record(*recipe, args, model, sentences, *run); });
  if (resumes) {
    check_record(*run, record, args.training, world);
    write_output_dir();
  }
  const AllSamples samples = on_all_ranks(world, [&] { return encode(args, sentences, model); });
  const tasks::Datasets data = datasets(args, samples, model);

  if (world.rank() == 0) {
    warn_of_labels(sentences.labels.names);
    const auto size = tasks::parameters_in_words(*model.classifier);
    tasks::print_start(*recipe, args.training, data.train.size,
                       fmt::format("{}, {}", size, about(sentences, samples)));
  }
  auto options = trainer_options(args, model, data);
  options.on_samples = tasks::log_samples(*recipe);
  options.record = std::move(record);
  options.opened_run = std::move(run);
  Trainer trainer(model.classifier, args.training, world, std::move(options));
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
