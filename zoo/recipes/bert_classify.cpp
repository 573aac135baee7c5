// Fine-tunes a BERT-type model to classify texts, evaluates it and labels new texts; on one process, or on
// many under lockrun or torchrun.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/comm/all_ranks.h"
#include "lockstep/trainer/best_metric.h"
#include "lockstep/trainer/opened_run.h"
#include "lockstep/zoo/tasks/bert_source.h"
#include "lockstep/zoo/tasks/class_metrics.h"
#include "lockstep/zoo/tasks/predictions.h"
#include "lockstep/zoo/tasks/recipe.h"
#include "lockstep/zoo/tasks/record_entries.h"
#include "lockstep/zoo/tasks/text_files.h"
#include "lockstep/zoo/text/build_vocab.h"

namespace {

using namespace lockstep;

struct Arguments {
  tasks::BertSource source{};
  tasks::TextFiles files{};
  TrainingArguments training{};
};

struct Model {
  text::BertTokenizer tokenizer;
  models::BertForSequenceClassification classifier;
};

void add_flags(tasks::RecipeFlags& flags, Arguments& args) {
  flags.add_example(
      "Fine-tune on two ranks and evaluate",
      "lockrun --nproc-per-node 2 bert_classify --model-name-or-path DIR --train-file train.csv "
      "--validation-file validation.csv --output-dir out");
  flags.add_example(
      "Label new texts with the result",
      "bert_classify --model-name-or-path out --do-predict --test-file new.csv --output-dir new");
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
void write_vocabulary(const Arguments& args, const tasks::TextTables& tables) {
  if (!args.source.needs_vocabulary()) return;
  const auto texts = tables.train->column(args.files.text_column);
  text::write_vocab(tasks::vocabulary_path(args.training.output_dir, nullptr),
                    text::build_vocab({texts.begin(), texts.end()}));
}

Model load(const Arguments& args, const tasks::TextTables& tables, const OpenedRun* run) {
  at::manual_seed(args.training.seed);  // of new weights
  const auto vocabulary = tasks::vocabulary_path(args.training.output_dir, run);
  auto tokenizer = args.source.load_tokenizer(vocabulary);
  auto classifier = run != nullptr && run->checkpoint()
                        ? args.source.make_model(tables.labels.names, tokenizer, vocabulary)
                        : args.source.load_model(tables.labels, tokenizer, vocabulary, use_of(args));
  return {std::move(tokenizer), std::move(classifier)};
}

/// What gives the weights their meaning.
checkpoint::RunRecord make_record(const tasks::RecipeRun& recipe, const Arguments& args, const Model& model,
                                  const tasks::TextTables& tables, const OpenedRun& run) {
  const auto& config = model.classifier->config();
  auto record = recipe.flags;
  record.add(args.files.record(tables, config.max_position_embeddings, run.record()));
  tasks::record_tokenizer(record, "tokenizer", model.tokenizer.files(), model.tokenizer.vocab_size());
  tasks::record_model_config(record, config.to_json(),
                             {"architectures", "id2label", "label2id", "problem_type"});
  return record;
}

std::vector<std::shared_ptr<Metric>> metrics_of(const tasks::TextTables& tables) {
  return tasks::classification_metrics(static_cast<int64_t>(tables.labels.names.size()));
}

TrainerOptions<models::BertForSequenceClassification> trainer_options(const Model& model,
                                                                      const tasks::TextTables& tables,
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
          .metrics = metrics_of(tables),
          .model_files = model_files};
}

void write_predictions(const Arguments& args, const tasks::TextTables& tables, const at::Tensor& logits) {
  std::vector<int64_t> records;  // those of the file, so that its bad rows do not move what follows
  for (size_t row = 0; row < tables.test->size(); ++row) records.push_back(tables.test->record(row));
  records.resize(static_cast<size_t>(logits.size(0)));
  tasks::write_predictions(args.training.output_dir / "predictions.jsonl", logits, tables.labels.names,
                           records);
}

int run(int argc, char** argv) {
  Arguments args;
  const auto recipe = tasks::start_recipe(
      {.name = "bert_classify",
       .description = "Fine-tunes a BERT-type model to classify texts, evaluates it and labels new texts",
       .add_flags = [&](tasks::RecipeFlags& flags) { add_flags(flags, args); },
       .check_flags = [&] { check(args); }},
      args.training, argc, argv);
  if (!recipe) return 0;
  const World& world = recipe->world;

  std::optional<OpenedRun> run;  // of a training
  if (!args.files.train_file.empty()) run = open_run(args.training, world);
  const bool resumes = run && run->checkpoint();
  const tasks::TextTables tables = on_all_ranks(world, [&] {
    return args.files.read(resumes ? tasks::labels_of(*run->checkpoint()) : args.source.known_labels());
  });
  on_all_ranks(world, [&] { check_best_metric(args.training, metrics_of(tables)); });
  const auto write_output_dir = [&] {
    tasks::make_output_dir(*recipe, args.training, tables.train_size(), [&] {
      if (!resumes) write_vocabulary(args, tables);
    });
  };
  if (!resumes) write_output_dir();
  const Model model = on_all_ranks(world, [&] { return load(args, tables, run ? &*run : nullptr); });
  checkpoint::RunRecord record;
  if (run) record = on_all_ranks(world, [&] { return make_record(*recipe, args, model, tables, *run); });
  if (resumes) {
    check_record(*run, record, args.training, world);
    write_output_dir();
  }
  const int64_t positions = model.classifier->config().max_position_embeddings;
  const tasks::Datasets data =
      on_all_ranks(world, [&] { return args.files.datasets(tables, model.tokenizer, positions); });

  if (world.rank() == 0) {
    const auto size = tasks::parameters_in_words(*model.classifier);
    tasks::print_start(*recipe, args.training, data.train.size,
                       fmt::format("{}, {}", size, args.files.about(tables)));
  }
  auto options = trainer_options(model, tables, data);
  options.on_samples = tasks::log_samples(*recipe);
  options.record = std::move(record);
  options.opened_run = std::move(run);
  Trainer trainer(model.classifier, args.training, world, std::move(options));
  tasks::train_and_test(*recipe, trainer, data, [&](const Trainer::Prediction& prediction) {
    write_predictions(args, tables, prediction.outputs);
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::tasks::run_recipe("bert_classify", [&] { return run(argc, argv); });
}
