// Fine-tunes a BERT-type model to classify texts, evaluates it and labels new texts; on one process, or on
// many under lockrun or torchrun.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/all_ranks.h"
#include "lockstep/trainer/best_metric.h"
#include "lockstep/trainer/opened_run.h"
#include "lockstep/zoo/tasks/bert_run.h"
#include "lockstep/zoo/tasks/class_metrics.h"
#include "lockstep/zoo/tasks/predictions.h"
#include "lockstep/zoo/tasks/recipe.h"
#include "lockstep/zoo/tasks/text_files.h"

namespace {

using namespace lockstep;

using Arguments = tasks::BertArguments<tasks::TextFiles>;
using Classifier = models::BertForSequenceClassification;
using Model = tasks::BertModel<Classifier>;

constexpr tasks::BertRecipe kRecipe{
    .name = "bert_classify",
    .description = "Fine-tunes a BERT-type model to classify texts, evaluates it and labels new texts",
    .train_example =
        "lockrun --nproc-per-node 2 bert_classify --model-name-or-path DIR --train-file train.csv "
        "--validation-file validation.csv --output-dir out",
    .predict_does = "Label new texts with the result",
    .predict_example =
        "bert_classify --model-name-or-path out --do-predict --test-file new.csv --output-dir new"};

std::vector<std::shared_ptr<Metric>> metrics_of(const tasks::TextTables& tables) {
  return tasks::classification_metrics(static_cast<int64_t>(tables.labels.names.size()));
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
  const auto recipe = tasks::start_bert(kRecipe, args, argc, argv);
  if (!recipe) return 0;
  const World& world = recipe->world;

  std::optional<OpenedRun> run = tasks::open_bert_run(args, world);
  const bool resumes = run && run->checkpoint();
  const tasks::TextTables tables = on_all_ranks(world, [&] {
    return args.files.read(resumes ? tasks::read_labels(*run->checkpoint()) : args.source.known_labels());
  });
  on_all_ranks(world, [&] { check_best_metric(args.training, metrics_of(tables)); });
  const auto words = [&] {
    const auto texts = tables.train->column(args.files.text_column);
    return std::vector<std::string_view>(texts.begin(), texts.end());
  };
  const auto record = [&](int64_t positions, const checkpoint::RunRecord& saved) {
    return args.files.record(tables, positions, saved);
  };
  auto beginning = tasks::begin_bert<Classifier>(
      *recipe, args, run,
      {.labels = tables.labels, .train_size = tables.train_size(), .words = words, .record = record});
  const Model& model = beginning.model;
  const tasks::Datasets data =
      on_all_ranks(world, [&] { return args.files.datasets(tables, model.tokenizer, model.positions()); });

  if (world.rank() == 0) {
    const auto size = tasks::parameters_in_words(*model.net);
    tasks::print_start(*recipe, args.training, data.train.size,
                       fmt::format("{}, {}", size, args.files.about(tables)));
  }
  auto options = tasks::bert_options(model, data);
  options.metrics = metrics_of(tables);
  options.on_samples = tasks::log_samples(*recipe);
  options.record = std::move(beginning.record);
  options.opened_run = std::move(run);
  Trainer trainer(model.net, args.training, world, std::move(options));
  tasks::train_and_test(*recipe, trainer, data, [&](const Trainer::Prediction& prediction) {
    write_predictions(args, tables, prediction.outputs);
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::tasks::run_recipe("bert_classify", [&] { return run(argc, argv); });
}
