// Does a premise entail a hypothesis? One loop, four ways to run it: a process alone, DataParallel that gathers
// logits, DataParallel that computes the loss in its replicas, DistributedDataParallel.
//
//   bert_nli --strategy dp --model-name-or-path DIR --train-file A.csv --validation-file B.csv
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/cli/command_line.h"
#include "lockstep/zoo.h"
#include "lockstep/zoo/tasks/flag_errors.h"

namespace {

using namespace lockstep;
using Seconds = std::chrono::duration<double>;

const std::vector<std::string> kLabels = {"entailment", "neutral", "contradiction"};

struct Options {
  tasks::BertSource source{};
  std::filesystem::path train_file, validation_file, output_dir, result_file;
  std::string strategy = "single", premise = "premise", hypothesis = "hypothesis", label = "label";
  bool no_quotes = false;
  int replicas = 2;
  int64_t batch_size = 128, epochs = 1, max_steps = 0, log_step = 10, max_length = 128;
  uint64_t seed = 42;
  double learning_rate = 3e-5;
};

constexpr auto kStrategyFlags = std::to_array<Flag<Options>>({
    {.name = "strategy",
     .member = &Options::strategy,
     .preset = kHeldValue,
     .words = "single, dp (gathers logits), dp-loss (loss in the replicas) or ddp"},
    {.name = "replicas",
     .member = &Options::replicas,
     .preset = kHeldValue,
     .check = FlagCheck::above(0),
     .words = "Replicas of dp and dp-loss"},
});

constexpr auto kDataFlags = std::to_array<Flag<Options>>({
    {.name = "train-file",
     .member = &Options::train_file,
     .words = "Table with a premise, a hypothesis and a label",
     .is_required = true},
    {.name = "validation-file",
     .member = &Options::validation_file,
     .words = "Evaluated at the end",
     .is_required = true},
    {.name = "premise-column",
     .member = &Options::premise,
     .preset = kHeldValue,
     .words = "Its name; MultiNLI's JSON lines have sentence1"},
    {.name = "hypothesis-column",
     .member = &Options::hypothesis,
     .preset = kHeldValue,
     .words = "Its name; MultiNLI's JSON lines have sentence2"},
    {.name = "label-column",
     .member = &Options::label,
     .preset = kHeldValue,
     .words = "entailment, neutral, contradiction, or 0, 1, 2; other rows stay out"},
    {.name = "no-quotes",
     .member = &Options::no_quotes,
     .words = "Quotes in CSV and TSV files are text, as in MultiNLI's TSV files."},
    {.name = "max-seq-length",
     .member = &Options::max_length,
     .preset = kHeldValue,
     .check = FlagCheck::above(0),
     .words = "Tokens of a pair at most"},
});

constexpr auto kTrainingFlags = std::to_array<Flag<Options>>({
    {.name = "batch-size",
     .member = &Options::batch_size,
     .preset = kHeldValue,
     .check = FlagCheck::above(0),
     .words = "Pairs a step, over all replicas and ranks"},
    {.name = "num-train-epochs",
     .member = &Options::epochs,
     .preset = kHeldValue,
     .check = FlagCheck::above(0),
     .words = "Passes over the training set"},
    {.name = "max-steps",
     .member = &Options::max_steps,
     .preset = kHeldValue,
     .words = "Ends after that many steps; 0: after the epochs"},
    {.name = "learning-rate",
     .member = &Options::learning_rate,
     .preset = kHeldValue,
     .words = "Learning rate of AdamW"},
    {.name = "seed",
     .member = &Options::seed,
     .preset = kHeldValue,
     .words = "Of the order of the pairs, of dropout and of new weights"},
    {.name = "logging-steps",
     .member = &Options::log_step,
     .preset = kHeldValue,
     .check = FlagCheck::above(0),
     .words = "Steps between lines"},
    {.name = "output-dir",
     .member = &Options::output_dir,
     .words = "With --model-config: where the vocabulary is written"},
    {.name = "result-file",
     .member = &Options::result_file,
     .words = "Also writes the last line there, as JSON"},
});

void add_flags(CommandLine program, Options& o) {
  program.add_table<Options>(kStrategyFlags, o);
  tasks::RecipeFlags source_flags(program);
  o.source.add_flags(source_flags);
  program.begin_group("Data");
  program.add_table<Options>(kDataFlags, o);
  program.begin_group("Training");
  program.add_table<Options>(kTrainingFlags, o);
}

using Errors = tasks::FlagErrors<kStrategyFlags, kDataFlags, kTrainingFlags, tasks::kBertSourceFlags>;

void check(const Options& o, const World& world) {
  o.source.check(tasks::BertSource::Use::training);
  if (o.strategy != "single" && o.strategy != "dp" && o.strategy != "dp-loss" && o.strategy != "ddp") {
    Errors::refuse("bert_nli: --strategy is {}; it must be single, dp, dp-loss or ddp", o.strategy);
  }
  if (o.strategy != "ddp" && world.size() > 1) {
    Errors::refuse("bert_nli: --strategy {} runs in one process: start it without lockrun, or take ddp",
                   o.strategy);
  }
  if (o.batch_size % world.size() != 0) {
    Errors::refuse("bert_nli: --batch-size {} does not divide among {} ranks", o.batch_size, world.size());
  }
  if (o.source.needs_vocabulary() && o.output_dir.empty())
    Errors::refuse("bert_nli: --model-config needs --output-dir");
}

/// Nothing if --help was asked for.
std::optional<Options> parse(int argc, char** argv, const World& world) {
  Options o;
  const auto flags = [&](CommandLine program) {
    add_flags(program, o);
    program.callback([&] { check(o, world); });
  };
  if (!parse_command_line("bert_nli", "Classifies pairs of texts, on replicas or ranks", flags, argc, argv))
    return {};
  return o;
}

struct Pairs {
  tables::TextTable table;
  bool has_numbers = false;  ///< labels 0, 1, 2: places in kLabels
};

/// Without the rows on which MultiNLI's annotators did not agree, whose label is "-" or -1.
Pairs read_pairs(const std::filesystem::path& file, const Options& o) {
  const tables::TextTable table =
      tables::read_text_table(file, {.quoting = o.no_quotes ? tables::Quoting::NONE : tables::Quoting::AUTO});
  const auto labels = table.column(o.label);
  const bool by_name = std::any_of(labels.begin(), labels.end(), [](const auto label) {
    return std::find(kLabels.begin(), kLabels.end(), label) != kLabels.end();
  });
  return {.table =
              tasks::with_labels(table, o.label, by_name ? kLabels : std::vector<std::string>{"0", "1", "2"}),
          .has_numbers = !by_name};
}

struct Tables {
  Pairs train, validation;
};

Tables read(const Options& o) {
  return {.train = read_pairs(o.train_file, o), .validation = read_pairs(o.validation_file, o)};
}

/// The model's labels as they stand in the data.
std::vector<std::string> labels_in(const Pairs& pairs, std::vector<std::string> names) {
  if (!pairs.has_numbers) return names;
  for (auto& name : names) {
    const auto place = std::find(kLabels.begin(), kLabels.end(), name);
    if (place != kLabels.end()) name = std::to_string(place - kLabels.begin());
  }
  return names;
}

std::filesystem::path vocabulary_path(const Options& o) { return o.output_dir / "vocab.txt"; }

/// For a model that is trained from scratch.
void write_vocabulary(const Options& o, const tables::TextTable& train) {
  std::vector<std::string_view> texts;
  for (const auto& name : {o.premise, o.hypothesis}) {
    for (const auto text : train.column(name)) texts.push_back(text);
  }
  std::filesystem::create_directories(o.output_dir);
  text::write_vocab(vocabulary_path(o), text::build_vocab(texts));
}

struct Model {
  text::BertTokenizer tokenizer;
  models::BertForSequenceClassification classifier;
};

Model load(const Options& o) {
  at::manual_seed(o.seed);  // of new weights
  auto tokenizer = o.source.load_tokenizer(vocabulary_path(o));
  const auto labels = tasks::choose_wanted_labels(kLabels, o.source.known_labels());
  auto classifier = o.source.load_model(labels, tokenizer, vocabulary_path(o));
  return {std::move(tokenizer), std::move(classifier)};
}

struct Data {
  Dataset train{}, validation{};
};

Data encode(const Options& o, const Tables& tables, const Model& model) {
  const auto encode_pairs = [&](const Pairs& pairs) {
    return tasks::text_dataset(pairs.table, {.text = o.premise, .text_pair = o.hypothesis, .label = o.label},
                               model.tokenizer, labels_in(pairs, model.classifier->config().labels),
                               {.max_seq_length = static_cast<size_t>(o.max_length)});
  };
  Data data{.train = encode_pairs(tables.train), .validation = encode_pairs(tables.validation)};
  if (data.train.size < o.batch_size) {
    Errors::refuse("bert_nli: {} has {} pairs, fewer than --batch-size {}", o.train_file.string(),
                   data.train.size, o.batch_size);
  }
  return data;
}

/// A rank's part of every batch of an epoch: the division that DataParallel makes.
std::vector<int64_t> part_of_rank(const std::vector<int64_t>& order, int64_t batch_size, const World& world) {
  const auto each = batch_size / world.size();
  std::vector<int64_t> mine;
  for (int64_t begin = 0; begin + batch_size <= static_cast<int64_t>(order.size()); begin += batch_size) {
    const auto first = order.begin() + begin + each * world.rank();
    mine.insert(mine.end(), first, first + each);
  }
  return mine;
}

models::BertBatch inputs(const Batch& batch) {
  return {batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]};
}

/// The four strategies differ in these two functions alone.
struct Strategy {
  std::function<at::Tensor(const Batch&)> loss{};  ///< backward leaves the whole batch's gradients
  std::function<at::Tensor(const models::BertBatch&)> predict{};
  std::function<DataParallelTimes()> times = [] { return DataParallelTimes{}; };
};

Strategy make_strategy(const Options& o, models::BertForSequenceClassification& model) {
  const auto cross_entropy = [](const at::Tensor& logits, const at::Tensor& labels) {
    return at::cross_entropy_loss(logits, labels);
  };
  if (o.strategy == "single") {
    return {[&, cross_entropy](auto& batch) { return cross_entropy(model(inputs(batch)), batch["labels"]); },
            [&](auto& batch) { return model(batch); }};
  }
  if (o.strategy == "ddp") {
    const auto ddp = std::make_shared<DistributedDataParallel<models::BertForSequenceClassification>>(model);
    return {[=](auto& batch) { return cross_entropy((*ddp)(inputs(batch)), batch["labels"]); },
            [&](auto& batch) { return model(batch); }};
  }
  const auto dp = std::make_shared<DataParallel<models::BertForSequenceClassification>>(
      model, DataParallelOptions{.replicas = o.replicas});
  Strategy strategy{{}, [=](auto& batch) { return (*dp)(batch); }, [=] { return dp->times(); }};
  if (o.strategy == "dp") {
    strategy.loss = [=](auto& batch) { return cross_entropy((*dp)(inputs(batch)), batch["labels"]); };
  } else {
    const DataParallelCriterion criterion(cross_entropy);
    strategy.loss = [=](auto& batch) { return criterion(*dp, batch["labels"], inputs(batch)); };
  }
  return strategy;
}

struct Scores {
  double accuracy = 0, mean_of_means = 0, precision = 0, recall = 0, macro_f1 = 0;
};

/// Each pair is on exactly one rank; the exact scores add up what the ranks count. The mean of the ranks'
/// accuracies, which many programs print, differs where ranks have different numbers of pairs.
Scores evaluate(const Strategy& strategy, models::BertForSequenceClassification& model, const Dataset& pairs,
                const Options& o, const World& world) {
  const at::NoGradGuard no_grad;
  model->eval();
  const auto metrics = tasks::classification_metrics(static_cast<int64_t>(model->config().labels.size()));
  DataLoader loader(pairs, evaluation_indices(pairs.size, world.size(), world.rank()),
                    {.batch_size = o.batch_size / world.size(), .num_workers = 1});
  for (const Batch& batch : loader) {
    const at::Tensor logits = strategy.predict(inputs(batch));
    for (const auto& metric : metrics) metric->update(logits, batch["labels"]);
  }
  model->train();
  at::Tensor mean = at::scalar_tensor(metrics.front()->compute(), at::kDouble);
  world.all_reduce(mean, {.op = ReduceOp::AVG});
  const auto values = compute(metrics, world);
  const auto value = [&](const char* name) {
    const auto found = std::find_if(metrics.begin(), metrics.end(),
                                    [&](const auto& metric) { return metric->name() == name; });
    return values.at(static_cast<size_t>(found - metrics.begin()));
  };
  return {.accuracy = value("accuracy"),
          .mean_of_means = mean.item<double>(),
          .precision = value("precision"),
          .recall = value("recall"),
          .macro_f1 = value("macro_f1")};
}

/// Proportional set size, in bytes: pages that processes share count once over all of them.
double memory_of_job(const World& world) {
  double kib = 0;
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Pss:")) kib = std::stod(line.substr(4));
  }
  at::Tensor sum = at::scalar_tensor(kib, at::kDouble);
  world.all_reduce(sum);
  return sum.item<double>() * 1024;
}

DataParallelTimes difference(DataParallelTimes times, const DataParallelTimes& before) {
  times.replicate -= before.replicate;
  times.scatter -= before.scatter;
  times.gather -= before.gather;
  times.reduce -= before.reduce;
  return times;
}

void report(const Options& o, const World& world, int64_t steps, Seconds time, double memory,
            const Scores& scores, const DataParallelTimes& times) {
  const int parts = o.strategy == "ddp" ? world.size() : o.strategy == "single" ? 1 : o.replicas;
  const double seconds = time.count(), speed = static_cast<double>(std::max<int64_t>(steps - 1, 1)) / seconds;
  const auto share = [&](std::chrono::nanoseconds part) { return 100 * Seconds(part).count() / seconds; };
  fmt::print("{:9}{:>6}{:>7}{:>10}{:>8}{:>11}{:>10}{:>10}{:>15}\n", "strategy", "parts", "steps", "time",
             "it/s", "samples/s", "PSS MiB", "accuracy", "mean of ranks");
  fmt::print("{:9}{:>6}{:>7}{:>9.1f}s{:>8.2f}{:>11.1f}{:>10.0f}{:>10.4f}{:>15.4f}\n", o.strategy, parts,
             steps, seconds, speed, speed * static_cast<double>(o.batch_size), memory / (1 << 20),
             scores.accuracy, scores.mean_of_means);
  fmt::print("precision {:.4f}, recall {:.4f}, macro F1 {:.4f}\n", scores.precision, scores.recall,
             scores.macro_f1);
  const bool replicated = times.forwards > 0;
  if (replicated) {
    fmt::print(
        "share of the time: replicate {:.2f} %, scatter {:.2f} %, gather {:.2f} %, sum of gradients {:.2f} %\n",
        share(times.replicate), share(times.scatter), share(times.gather), share(times.reduce));
  }
  if (o.result_file.empty()) return;
  std::ofstream file(o.result_file);
  file << fmt::format(
      R"({{"strategy": "{}", "parts": {}, "steps": {}, "batch_size": {}, "seconds": {}, "samples_per_second": {}, )"
      R"("pss_bytes": {:.0f}, "accuracy": {}, "mean_of_ranks": {}, "precision": {}, "recall": {}, "macro_f1": {}, )"
      R"("replicate_percent": {}, "scatter_percent": {}, )"
      R"("gather_percent": {}, "reduce_percent": {}}})"
      "\n",
      o.strategy, parts, steps, o.batch_size, seconds, speed * static_cast<double>(o.batch_size), memory,
      scores.accuracy, scores.mean_of_means, scores.precision, scores.recall, scores.macro_f1,
      share(times.replicate), share(times.scatter), share(times.gather), share(times.reduce));
  if (!file.flush()) throw FileError(fmt::format("cannot write {}", o.result_file.string()));
}

void train(models::BertForSequenceClassification& model, const Data& data, const Options& o,
           const World& world) {
  const Strategy strategy = make_strategy(o, model);
  FusedAdamW optimizer(parameters(model), torch::optim::AdamWOptions(o.learning_rate));
  int64_t step = 0;
  auto start = std::chrono::steady_clock::now();
  DataParallelTimes before;
  for (int64_t epoch = 0; epoch < o.epochs; ++epoch) {
    const auto order = random_indices(data.train.size, o.seed + static_cast<uint64_t>(epoch));
    DataLoader loader(data.train, part_of_rank(order, o.batch_size, world),
                      {.batch_size = o.batch_size / world.size(), .drop_last = true, .num_workers = 1});
    for (; o.max_steps == 0 || step < o.max_steps; ++step) {
      const auto batch = loader.next();
      if (!batch) break;
      at::manual_seed(random_key({o.seed, static_cast<uint64_t>(step)}));
      // A rank draws what a replica of its number would.
      if (o.strategy == "ddp") at::manual_seed(replica_seed(draw_replica_key(), world.rank()));
      optimizer.zero_grad();
      const at::Tensor loss = strategy.loss(*batch);
      loss.backward();
      optimizer.step();
      if (step % o.log_step == 0) {
        const at::Tensor mean = loss.detach();
        world.all_reduce(mean, {.op = ReduceOp::AVG});
        if (world.rank() == 0) fmt::print("step:{}, loss:{}\n", step, mean.item<float>());
      }
      if (step > 0) continue;
      world.barrier();  // the first step, which touches all memory, is not timed
      before = strategy.times();
      start = std::chrono::steady_clock::now();
    }
  }
  const Seconds time = std::chrono::steady_clock::now() - start;
  const DataParallelTimes times = difference(strategy.times(), before);
  const double memory = memory_of_job(world);
  const Scores scores = evaluate(strategy, model, data.validation, o, world);
  if (world.rank() == 0) report(o, world, step, time, memory, scores, times);
}

int run(int argc, char** argv) {
  const World world = init();
  if (world.rank() != 0) log::set_level(log::Level::error);
  if (world.rank() != 0) disable_progress_bars();
  // A mistake is told once, by one rank.
  const auto o = on_all_ranks(world, [&] { return parse(argc, argv, world); });
  if (!o) return 0;  // --help
  const Tables tables = on_all_ranks(world, [&] { return read(*o); });
  on_all_ranks(world, [&] {  // before the others read it
    if (o->source.needs_vocabulary() && world.rank() == 0) write_vocabulary(*o, tables.train.table);
  });
  Model model = on_all_ranks(world, [&] { return load(*o); });
  const Data data = on_all_ranks(world, [&] { return encode(*o, tables, model); });
  train(model.classifier, data, *o, world);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  skip_library_destructors();
  keep_freed_memory();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return run_main("bert_nli", [&] { return run(argc, argv); });
}
