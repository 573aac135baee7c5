// Fine-tunes a BERT-type model to classify texts, evaluates it and labels new texts; on one process, or on
// many under lockrun or torchrun.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/main.h"
#include "lockstep/base/memory.h"
#include "lockstep/comm/init.h"
#include "lockstep/data/text_table.h"
#include "lockstep/models/bert.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/text/bert_tokenizer.h"
#include "lockstep/text/build_vocab.h"
#include "lockstep/trainer/all_ranks.h"
#include "lockstep/trainer/flags.h"
#include "lockstep/trainer/text_classification.h"
#include "lockstep/trainer/trainer.h"
#include "lockstep/trainer/training_log.h"
#include "lockstep/trainer/training_plan.h"

namespace {

using namespace lockstep;
using trainer::Dataset;

struct Options {
  trainer::TrainingArguments training;
  std::filesystem::path model_name_or_path, train_file, validation_file, test_file, log_sample_ids;
  std::filesystem::path tokenizer_name;
  std::string model_config;
  trainer::TextColumns columns;
  std::string text_pair_column, label_column = "label";
  std::vector<std::string> label_names;
  std::optional<size_t> max_seq_length;
  bool do_predict = false;
  double hidden_dropout = -1, attention_dropout = -1;
};

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
  app.add_option("--text-column", o.columns.text, "Column of the text")->capture_default_str();
  app.add_option("--text-pair-column", o.text_pair_column, "Column of the second text of a pair");
  app.add_option("--label-column", o.label_column, "Column of the label: numbers or names")
      ->capture_default_str();
  app.add_option("--label-names", o.label_names, "Names by id, with commas between")->delimiter(',');
  app.add_option("--max-seq-length", o.max_seq_length,
                 "Longer texts are cut to this many tokens [128, or what the model takes]");
  app.add_option("--hidden-dropout", o.hidden_dropout, "Instead of the model's hidden_dropout_prob");
  app.add_option("--attention-dropout", o.attention_dropout, "Instead of its attention_probs_dropout_prob");
  app.add_option("--log-sample-ids", o.log_sample_ids, "Write the rows of every step and rank to this file");
  trainer::add_training_flags(app, o.training);
}

void validate(const Options& o) {
  o.training.validate();
  if (o.model_name_or_path.empty() && o.model_config.empty()) {
    throw ValueError(
        "no model: give --model-name-or-path DIR, or --model-config small to train from scratch");
  }
  if (!o.model_name_or_path.empty() && !o.model_config.empty()) {
    throw ValueError("--model-name-or-path and --model-config exclude each other; give one");
  }
  if (o.train_file.empty() && o.validation_file.empty() && o.test_file.empty()) {
    throw ValueError("nothing to do: give --train-file, --validation-file, or --do-predict with --test-file");
  }
  if (o.do_predict == o.test_file.empty()) {
    throw ValueError("--do-predict and --test-file belong together; give both or neither");
  }
  if (o.training.eval_strategy != trainer::IntervalStrategy::NO && o.validation_file.empty()) {
    throw ValueError("--eval-strategy needs a --validation-file");
  }
  if (!o.model_config.empty() && o.train_file.empty()) {
    throw ValueError("--model-config makes a model that knows nothing; give --train-file");
  }
  for (const auto& [flag, value] : {std::pair{"--hidden-dropout", o.hidden_dropout},
                                    std::pair{"--attention-dropout", o.attention_dropout}}) {
    if (value != -1 && !(value >= 0 && value < 1)) {
      throw ValueError(fmt::format("{} is {}; it must be in [0, 1)", flag, value));
    }
  }
}

// What every rank loads or makes for itself, alike on all.
struct Job {
  std::optional<data::TextTable> train_table, validation_table, test_table;
  std::vector<std::string> labels;
  std::filesystem::path tokenizer;
  models::BertForSequenceClassification model{nullptr};
  Dataset train, validation, test;
};

void read_files(const Options& o, int rank, Job& job) {
  const auto read = [](const std::filesystem::path& file, auto& table) {
    if (!file.empty()) table = data::read_text_table(file);
  };
  read(o.train_file, job.train_table);
  read(o.validation_file, job.validation_table);
  read(o.test_file, job.test_table);
  const auto known = o.model_config.empty()
                         ? models::BertConfig::from_file(o.model_name_or_path / "config.json").labels
                         : std::vector<std::string>();
  job.labels = trainer::choose_labels(o.label_names, known, job.train_table, o.label_column);
  job.tokenizer = o.tokenizer_name.empty() ? o.model_name_or_path : o.tokenizer_name;
  if (rank == 0) trainer::make_directory(o.training.output_dir);
  if (!job.tokenizer.empty()) return;
  job.tokenizer = o.training.output_dir / "vocab.txt";
  if (rank == 0) text::write_vocab(job.tokenizer, text::build_vocab(job.train_table->column(o.columns.text)));
}

models::BertForSequenceClassification make_model(const Options& o, const Job& job, int64_t vocab_size) {
  at::manual_seed(o.training.seed);
  models::BertForSequenceClassification model{nullptr};
  if (o.model_config.empty()) {
    model = models::load_bert_classifier(o.model_name_or_path, job.labels);
  } else {
    auto config = o.model_config == "small" ? models::BertConfig::small()
                                            : models::BertConfig::from_file(o.model_config);
    if (o.model_config == "small") config.vocab_size = vocab_size;
    config.labels = job.labels;
    model = models::BertForSequenceClassification(config);
  }
  const auto& config = model->config();
  models::check_vocab_fits(config, vocab_size, job.tokenizer);
  model->set_dropout(o.hidden_dropout < 0 ? config.hidden_dropout_prob : o.hidden_dropout,
                     o.attention_dropout < 0 ? config.attention_probs_dropout_prob : o.attention_dropout);
  return model;
}

size_t max_length(const Options& o, int64_t positions) {
  if (!o.max_seq_length) return static_cast<size_t>(std::min<int64_t>(128, positions));
  if (*o.max_seq_length <= static_cast<size_t>(positions)) return *o.max_seq_length;
  throw ValueError(
      fmt::format("--max-seq-length is {}; the model has {} positions", *o.max_seq_length, positions));
}

text::BertTokenizer load_tokenizer(const std::filesystem::path& path) {
  return std::filesystem::is_directory(path) ? text::BertTokenizer::from_directory(path)
                                             : text::BertTokenizer::from_file(path);
}

void load(const Options& o, const text::BertTokenizer& tokenizer, Job& job) {
  job.model = make_model(o, job, tokenizer.vocab_size());
  const size_t length = max_length(o, job.model->config().max_position_embeddings);
  auto columns = o.columns;
  if (!o.text_pair_column.empty()) columns.text_pair = o.text_pair_column;
  const auto dataset = [&](const std::optional<data::TextTable>& table, bool labelled) {
    if (!table) return Dataset{};
    columns.label = labelled ? std::optional(o.label_column) : std::nullopt;
    return trainer::text_dataset(*table, columns, tokenizer, length, job.labels);
  };
  job.train = dataset(job.train_table, true);
  job.validation = dataset(job.validation_table, true);
  job.test = dataset(job.test_table, job.test_table && job.test_table->has_column(o.label_column));
}

void print_start(const Options& o, const World& world, const Job& job) {
  int64_t parameters = 0;
  for (const auto& parameter : job.model->parameters()) parameters += parameter.numel();
  fmt::print("{} rank{} (backend {}, {} thread{} each), {:.1f} M parameters, labels {}\n", world.size(),
             world.size() == 1 ? "" : "s", world.backend_name(), at::get_num_threads(),
             at::get_num_threads() == 1 ? "" : "s", static_cast<double>(parameters) / 1e6,
             fmt::join(job.labels, ", "));
  if (job.train.size > 0) {
    const auto plan = trainer::plan_training(job.train.size, world.size(), o.training);
    fmt::print("training: {} samples, {} steps of {} samples\n", job.train.size, plan.max_steps,
               plan.total_train_batch_size);
  }
  std::fflush(stdout);
}

void run(const Options& o, World& world, const text::BertTokenizer& tokenizer, Job& job) {
  const auto& args = o.training;
  const bool main_rank = world.rank() == 0;
  DistributedDataParallel ddp(job.model, {.bucket_cap_mb = args.ddp_bucket_cap_mb});
  at::manual_seed(args.seed + static_cast<uint64_t>(world.rank()));  // each rank drops out its own units

  trainer::TrainerOptions options{.train_dataset = job.train,
                                  .eval_dataset = job.validation,
                                  .num_labels = static_cast<int64_t>(job.labels.size())};
  std::optional<trainer::LineFile> sample_log;
  if (!o.log_sample_ids.empty()) {
    if (main_rank) trainer::LineFile(o.log_sample_ids, true);
    world.barrier();
    sample_log.emplace(o.log_sample_ids, false);
    options.on_samples = [&](int64_t step, const std::vector<int64_t>& ids) {
      sample_log->append(fmt::format(R"({{"step": {}, "rank": {}, "ids": [{}]}})", step, world.rank(),
                                     fmt::join(ids, ", ")));
    };
  }
  trainer::Trainer trainer(
      trainer::trainable(ddp,
                         [](auto& model, const trainer::Batch& batch) {
                           return model(models::BertBatch{batch.inputs[0], batch.inputs[1], batch.inputs[2]});
                         }),
      args, world, options);

  const bool trains = job.train.size > 0;
  if (trains) {
    trainer.train();
    if (main_rank) {
      models::save_bert_classifier(job.model, args.output_dir);
      tokenizer.save(args.output_dir);
      trainer::save_trainer_state(trainer.state(), args.output_dir);
    }
  }
  const auto save = [&](const std::string& split, const trainer::Metrics& metrics) {
    if (!main_rank || metrics.empty()) return;
    trainer::save_metrics(args.output_dir, split, metrics);
    if (trains) trainer::save_trainer_state(trainer.state(), args.output_dir);
  };
  const bool evaluated = trains && args.eval_strategy != trainer::IntervalStrategy::NO;
  if (job.validation.size > 0 && !evaluated) save("eval", trainer.evaluate(job.validation));
  if (job.test.size > 0) {
    const auto prediction = trainer.predict(job.test);
    save("test", prediction.metrics);
    if (main_rank)
      trainer::write_predictions(args.output_dir / "predictions.jsonl", prediction.logits, job.labels);
  }
  if (main_rank && trains) fmt::print("model saved in {}\n", args.output_dir.string());
}

int bert_classify(int argc, char** argv) {
  Options o;
  CLI::App app("Fine-tunes a BERT-type model to classify texts, evaluates it, labels new texts.",
               "bert_classify");
  add_flags(app, o);
  // Every rank finds the same mistake in the flags; it is reported once the ranks can agree who speaks.
  std::optional<ValueError> mistake;
  try {
    app.parse(trainer::normalized_arguments(argc, argv));
    validate(o);
  } catch (const CLI::CallForHelp&) {
    if (env::get_int("RANK").value_or(0) == 0) fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    mistake.emplace(error.what());
  } catch (const ValueError& error) {
    mistake = error;
  }
  auto world = init({.backend = mistake ? "" : o.training.ddp_backend, .timeout = o.training.ddp_timeout});
  if (world.rank() != 0) log::set_level(log::Level::error);

  Job job;
  std::optional<text::BertTokenizer> tokenizer;
  trainer::on_all_ranks(world, [&] {
    if (mistake) throw *mistake;
    read_files(o, world.rank(), job);
    if (job.train_table)
      trainer::plan_training(static_cast<int64_t>(job.train_table->size()), world.size(), o.training);
  });
  trainer::on_all_ranks(world, [&] {
    tokenizer.emplace(load_tokenizer(job.tokenizer));
    load(o, *tokenizer, job);
  });
  if (world.rank() == 0) print_start(o, world, job);
  run(o, world, *tokenizer, job);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::keep_freed_memory();  // a step's tensors return in the next
  return lockstep::run_main("bert_classify", [&] { return bert_classify(argc, argv); });
}
