// Fine-tunes a BERT-type model to classify texts, evaluates it and labels new texts; on one process, or on
// many under lockrun or torchrun.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/main.h"
#include "lockstep/base/memory.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/comm/init.h"
#include "lockstep/data/text_table.h"
#include "lockstep/models/bert.h"
#include "lockstep/models/model_directory.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/text/bert_tokenizer.h"
#include "lockstep/text/build_vocab.h"
#include "lockstep/trainer/output_dir.h"
#include "lockstep/trainer/predictions.h"
#include "lockstep/trainer/summary.h"
#include "lockstep/trainer/text_classification.h"
#include "lockstep/trainer/trainer.h"
#include "lockstep/trainer/training_log.h"
#include "lockstep/trainer/training_plan.h"
#include "recipes/bert_classify/options.h"

namespace {

using namespace lockstep;

// What every rank loads or makes for itself, alike on all.
struct Job {
  std::optional<TextTable> train_table, validation_table, test_table;
  std::vector<std::string> labels;
  std::filesystem::path tokenizer;
  models::BertForSequenceClassification model{nullptr};
  Dataset train, validation, test;
};

void read_files(const Options& o, int rank, Job& job) {
  const auto read = [](const std::filesystem::path& file, auto& table) {
    if (!file.empty()) table = read_text_table(file);
  };
  if (!o.model_name_or_path.empty()) models::check_model_directory(o.model_name_or_path);
  if (!o.train_file.empty() && rank == 0) {
    check_output_dir(o.training.output_dir, o.training.overwrite_output_dir);
  }
  read(o.train_file, job.train_table);
  read(o.validation_file, job.validation_table);
  read(o.test_file, job.test_table);
  const auto known = o.model_config.empty()
                         ? models::BertConfig::from_file(o.model_name_or_path / "config.json").labels
                         : std::vector<std::string>();
  job.labels = choose_labels(o.label_names, known, job.train_table, o.label_column);
  job.tokenizer = o.tokenizer_name.empty() ? o.model_name_or_path : o.tokenizer_name;
  if (rank == 0) {
    make_directory(o.training.output_dir);
    if (!o.log_sample_ids.empty()) LineFile(o.log_sample_ids, true);
  }
  if (!job.tokenizer.empty()) return;
  job.tokenizer = o.training.output_dir / "vocab.txt";
  if (rank == 0) write_vocab(job.tokenizer, build_vocab(job.train_table->column(o.text_column)));
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

BertTokenizer load_tokenizer(const std::filesystem::path& path) {
  return std::filesystem::is_directory(path) ? BertTokenizer::from_directory(path)
                                             : BertTokenizer::from_file(path);
}

void load(const Options& o, const BertTokenizer& tokenizer, Job& job) {
  job.model = make_model(o, job, tokenizer.vocab_size());
  const size_t length = max_length(o, job.model->config().max_position_embeddings);
  TextColumns columns{.text = o.text_column};
  if (!o.text_pair_column.empty()) columns.text_pair = o.text_pair_column;
  const auto dataset = [&](const std::optional<TextTable>& table, bool labelled) {
    if (!table) return Dataset{};
    columns.label = labelled ? std::optional(o.label_column) : std::nullopt;
    return text_dataset(*table, columns, tokenizer, length, job.labels);
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
    const auto plan = plan_training(job.train.size, world.size(), o.training);
    fmt::print("training: {} samples, {} steps of {} samples\n", job.train.size, plan.max_steps,
               plan.total_train_batch_size);
  }
  std::fflush(stdout);
}

void run(const Options& o, World& world, const BertTokenizer& tokenizer, Job& job) {
  const auto& args = o.training;
  const bool main_rank = world.rank() == 0;
  DistributedDataParallel ddp(job.model, {.bucket_cap_mb = args.ddp_bucket_cap_mb});
  at::manual_seed(args.seed + static_cast<uint64_t>(world.rank()));  // each rank drops out its own units

  TrainerOptions options{.train_dataset = job.train,
                         .eval_dataset = job.validation,
                         .num_labels = static_cast<int64_t>(job.labels.size())};
  std::optional<LineFile> sample_log;
  if (!o.log_sample_ids.empty()) {
    sample_log.emplace(o.log_sample_ids, false);
    options.on_samples = [&](int64_t step, const std::vector<int64_t>& ids) {
      sample_log->append(fmt::format(R"({{"step": {}, "rank": {}, "ids": [{}]}})", step, world.rank(),
                                     fmt::join(ids, ", ")));
    };
  }
  Trainer trainer(
      trainable(ddp,
                [](auto& model, const Batch& batch) {
                  return model(models::BertBatch{batch.inputs[0], batch.inputs[1], batch.inputs[2]});
                }),
      args, world, options);

  const auto started = std::chrono::steady_clock::now();
  const bool trains = job.train.size > 0;
  std::vector<std::string> summary;
  const auto save = [&](const std::string& split, const Metrics& metrics) {
    if (!main_rank || metrics.empty()) return;
    save_metrics(args.output_dir, split, metrics);
    summary.push_back(summary_line(split, metrics));
  };
  if (trains) {
    save("train", trainer.train());
    if (main_rank) {
      models::save_bert_classifier(job.model, args.output_dir);
      tokenizer.save(args.output_dir);
      save_trainer_state(trainer.state(), args.output_dir);
    }
  }
  if (job.validation.size > 0) {
    // The last step's evaluation is of the same model.
    const auto last = trainer.last_evaluation();
    save("eval", last.empty() ? trainer.evaluate(job.validation) : last);
  }
  if (job.test.size > 0) {
    const auto prediction = trainer.predict(job.test);
    save("test", prediction.metrics);
    if (main_rank) write_predictions(args.output_dir / "predictions.jsonl", prediction.logits, job.labels);
  }
  if (!main_rank) return;
  if (trains) {
    save_trainer_state(trainer.state(), args.output_dir);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started;
    fmt::print("{}\n", length_of_run(trainer.state(), seconds.count()));
  }
  for (const auto& line : summary) fmt::print("  {}\n", line);
  if (trains) fmt::print("model saved in {}\n", args.output_dir.string());
}

int bert_classify(int argc, char** argv) {
  // Every rank finds the same mistake in the flags; it is reported once the ranks can agree who speaks.
  Options o;
  std::optional<ValueError> mistake;
  try {
    auto parsed = parse_options(argc, argv);
    if (!parsed) return 0;
    o = std::move(*parsed);
  } catch (const ValueError& error) {
    mistake = error;
  }
  auto world = init({.backend = mistake ? "" : o.training.ddp_backend, .timeout = o.training.ddp_timeout});
  if (world.rank() != 0) log::set_level(log::Level::error);

  Job job;
  std::optional<BertTokenizer> tokenizer;
  on_all_ranks(world, [&] {
    if (mistake) throw *mistake;
    read_files(o, world.rank(), job);
    if (job.train_table)
      plan_training(static_cast<int64_t>(job.train_table->size()), world.size(), o.training);
  });
  on_all_ranks(world, [&] {
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
