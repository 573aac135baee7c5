// Fine-tunes a BERT-type model to classify texts, evaluates it and labels new texts; on one process, or on
// many under lockrun or torchrun.
#include <fmt/format.h>

#include <optional>

#include "lockstep/metrics/classification.h"
#include "lockstep/zoo/tasks/bert_source.h"
#include "lockstep/zoo/tasks/predictions.h"
#include "lockstep/zoo/tasks/recipe.h"
#include "lockstep/zoo/tasks/text_files.h"
#include "lockstep/zoo/text/build_vocab.h"

namespace {

using namespace lockstep;

class BertClassify : public tasks::Recipe {
  tasks::BertSource source;
  tasks::TextFiles files;
  std::optional<text::BertTokenizer> tokenizer;
  models::BertForSequenceClassification model{nullptr};

  std::filesystem::path vocabulary() const { return args.output_dir / "vocab.txt"; }

  void add_flags(CommandLine program) override {
    program.add_example(
        "Fine-tune on two ranks and evaluate",
        "lockrun --nproc-per-node 2 bert_classify --model-name-or-path DIR --train-file train.csv "
        "--validation-file validation.csv --output-dir out");
    program.add_example(
        "Label new texts with the result",
        "bert_classify --model-name-or-path out --do-predict --test-file new.csv --output-dir new");
    source.add_flags(program);
    files.add_flags(program);
  }

  void check_flags() override {
    source.check(!files.train_file.empty());
    files.check(args);
  }

  void read() override {
    files.read(source.known_labels(), source.is_classifier());
    if (files.train) train_size = static_cast<int64_t>(files.train->size());
  }

  void prepare() override {
    if (!source.needs_vocabulary()) return;
    const auto texts = files.train->column(files.text_column);
    text::write_vocab(vocabulary(), text::build_vocab({texts.begin(), texts.end()}));
  }

  void load() override {
    tokenizer.emplace(source.load_tokenizer(vocabulary()));
    model = source.load_model(files.labels, *tokenizer, vocabulary());
    const int64_t positions = model->config().max_position_embeddings;
    train = files.dataset(files.train, *tokenizer, positions);
    validation = files.dataset(files.validation, *tokenizer, positions);
    test = files.dataset(files.test, *tokenizer, positions);
  }

  std::string about() const override {
    return fmt::format("{}, {}", tasks::parameters_in_words(*model), files.about());
  }

  std::unique_ptr<Trainer> make_trainer(const ProcessGroup& world, OnSamples on_samples) override {
    TrainerOptions<models::BertForSequenceClassification> options{
        .train_dataset = train,
        .eval_dataset = validation,
        .forward =
            [](auto& net, const Batch& batch) {
              return net(
                  models::BertBatch{batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]});
            },
        .metrics = {accuracy(), f1({.average = files.labels.size() == 2 ? "binary" : "macro"})},
        .model_files =
            [this] {
              auto files = tokenizer->files();
              files["config.json"] = model->config().to_json();
              return files;
            },
        .on_samples = std::move(on_samples)};
    return std::make_unique<Trainer>(model, args, world, std::move(options));
  }

  void write_predictions(const Trainer::Prediction& prediction) override {
    std::vector<int64_t> records;  // those of the file, so that its bad rows do not move what follows
    for (size_t row = 0; row < files.test->size(); ++row) records.push_back(files.test->record(row));
    records.resize(static_cast<size_t>(prediction.outputs.size(0)));
    lockstep::tasks::write_predictions(args.output_dir / "predictions.jsonl", prediction.outputs,
                                       files.labels, records);
  }
};

}  // namespace

int main(int argc, char** argv) {
  BertClassify recipe;
  return lockstep::tasks::run_recipe(
      "bert_classify", "Fine-tunes a BERT-type model to classify texts, evaluates it and labels new texts",
      recipe, argc, argv);
}
