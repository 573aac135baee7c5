// A loop that is written out, and goes on with the same bits when a rank dies: lockstep::Recovery.
//
//   lockrun --max-replacements 5 --nproc-per-node 2 bert_recovery --train-file A.csv --output-dir DIR
#include <ATen/ops/cross_entropy_loss.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>
#include <vector>

#include "lockstep/cli/command_line.h"
#include "lockstep/zoo.h"

namespace {

using namespace lockstep;

struct Options {
  std::filesystem::path train_file, output_dir;
  int64_t max_steps = 200, batch_size = 8, log_step = 20;
  double learning_rate = 1e-4;
  uint64_t seed = 42;
};

constexpr auto kFlags = std::to_array<Flag<Options>>({
    {.name = "train-file",
     .member = &Options::train_file,
     .words = "Table with columns text and label",
     .is_required = true},
    {.name = "output-dir",
     .member = &Options::output_dir,
     .value = "DIR",
     .words = "Where the model is written in the end",
     .is_required = true},
    {.name = "max-steps",
     .member = &Options::max_steps,
     .preset = kHeldValue,
     .check = FlagCheck::above(0),
     .words = "Steps"},
    {.name = "per-device-train-batch-size",
     .member = &Options::batch_size,
     .preset = kHeldValue,
     .check = FlagCheck::above(0),
     .words = "Samples per rank"},
    {.name = "learning-rate",
     .member = &Options::learning_rate,
     .preset = kHeldValue,
     .words = "Learning rate of AdamW"},
    {.name = "seed",
     .member = &Options::seed,
     .preset = kHeldValue,
     .words = "Of the weights, the order of the texts and dropout"},
    {.name = "logging-steps",
     .member = &Options::log_step,
     .preset = kHeldValue,
     .check = FlagCheck::above(0),
     .words = "Steps between lines"},
});

/// This rank's part of a step follows from the step's number. So a process that takes the place of another one finds it.
class Batches {
 public:
  Batches(Dataset data, const Options& o, const World& world)
      : data_(std::move(data)),
        sampler_(data_.size, {.num_replicas = world.size(), .rank = world.rank(), .seed = o.seed}),
        size_(std::min(o.batch_size, sampler_.num_samples())),
        in_epoch_(sampler_.num_samples() / size_) {}

  Batch at_step(int64_t number) {
    const int64_t epoch = number / in_epoch_;
    if (epoch != epoch_) {
      sampler_.set_epoch(epoch);
      indices_ = sampler_.indices();
      epoch_ = epoch;
    }
    const auto first = indices_.begin() + number % in_epoch_ * size_;
    return data_.collate({first, first + size_});
  }

 private:
  Dataset data_;
  DistributedSampler sampler_;
  int64_t size_, in_epoch_, epoch_ = -1;
  std::vector<int64_t> indices_{};
};

struct Prepared {
  Dataset data{};
  models::BertForSequenceClassification model{nullptr};
};

Prepared prepare(const Options& o, const World& world) {
  const auto table = on_all_ranks(world, [&] { return tables::read_text_table(o.train_file); });
  const auto vocabulary = o.output_dir / "vocab.txt";
  on_all_ranks(world, [&] {
    if (world.rank() != 0) return;
    const auto texts = table.column("text");
    std::filesystem::create_directories(o.output_dir);
    text::write_vocab(vocabulary, text::build_vocab({texts.begin(), texts.end()}));
  });
  return on_all_ranks(world, [&] {
    const auto tokenizer = text::BertTokenizer::from_file(vocabulary);
    auto config = models::BertConfig::small();
    config.vocab_size = tokenizer.vocab_size();
    config.labels = tasks::infer_labels(table, "label");
    auto data =
        tasks::text_dataset(table, {.label = "label"}, tokenizer, config.labels, {.max_seq_length = 64});
    at::manual_seed(o.seed);
    return Prepared{std::move(data), models::BertForSequenceClassification(config)};
  });
}

void train(Prepared& prepared, const Options& o, const World& world) {
  auto& model = prepared.model;
  DistributedDataParallel ddp(model);
  FusedAdamW optimizer(parameters(model), torch::optim::AdamWOptions(o.learning_rate));
  Batches batches(prepared.data, o, world);
  // Here a process that takes the place of one that died gets the state of the others.
  Recovery recovery(world, {{"model", model}, {"optimizer", optimizer}}, {.seed = o.seed});
  at::Tensor loss;
  while (recovery.steps() < o.max_steps) {
    step(recovery, [&] {
      optimizer.zero_grad();
      const Batch batch = batches.at_step(recovery.steps());
      const models::BertBatch inputs{batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]};
      loss = at::cross_entropy_loss(ddp(inputs), batch["labels"]);
      loss.backward();
      optimizer.step();
    });
    if (world.rank() == 0 && recovery.steps() % o.log_step == 0 && loss.defined()) {
      fmt::print("step {} of {}, loss {:.4f}\n", recovery.steps(), o.max_steps, loss.item<float>());
    }
  }
}

int run(int argc, char** argv) {
  const World world = init();
  if (world.rank() != 0) log::set_level(log::Level::error);
  const auto o = on_all_ranks(world, [&] {
    return parse_table<Options>("bert_recovery", "Trains a small BERT whose ranks may die", kFlags, argc,
                                argv);
  });
  if (!o) return 0;  // --help
  Prepared prepared = prepare(*o, world);
  train(prepared, *o, world);
  on_all_ranks(world, [&] {
    if (world.rank() == 0) models::save_bert_classifier(prepared.model, o->output_dir);
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  skip_library_destructors();
  keep_freed_memory();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // each line appears at once
  return run_main("bert_recovery", [&] { return run(argc, argv); });
}
