// A classifier of texts, trained by a loop that is written out: what distributed training is made of.
//
//   lockrun --nproc-per-node 2 bert_by_hand --model-name-or-path DIR --train-file A.csv --validation-file B.csv
#include <ATen/ops/cross_entropy_loss.h>
#include <fmt/format.h>

#include <array>
#include <cstdio>

#include "lockstep/cli/command_line.h"
#include "lockstep/zoo.h"

namespace {

using namespace lockstep;

const std::vector<std::string> kLabels = {"positive", "negative"};

struct Options {
  tasks::BertSource source;
  std::filesystem::path train_file, validation_file;
  int64_t epochs = 3, batch_size = 16, log_step = 100;
  double learning_rate = 5e-5;
};

constexpr auto kFlags = std::to_array<Flag<Options>>({
    {.name = "model-name-or-path",
     .target = member_of<&Options::source, &tasks::BertSource::model_name_or_path>,
     .words = "Directory of a BERT",
     .is_required = true},
    {.name = "ignore-mismatched-sizes",
     .target = member_of<&Options::source, &tasks::BertSource::ignore_mismatched_sizes>,
     .words = "Trains a new head"},
    {.name = "train-file",
     .member = &Options::train_file,
     .words = "Table with columns text and label",
     .is_required = true},
    {.name = "validation-file",
     .member = &Options::validation_file,
     .words = "Evaluated after every epoch",
     .is_required = true},
    {.name = "num-train-epochs",
     .member = &Options::epochs,
     .preset = kHeldValue,
     .words = "Passes over the training set"},
    {.name = "per-device-train-batch-size",
     .member = &Options::batch_size,
     .preset = kHeldValue,
     .words = "Samples per rank"},
    {.name = "learning-rate",
     .member = &Options::learning_rate,
     .preset = kHeldValue,
     .words = "Learning rate of Adam"},
    {.name = "logging-steps",
     .member = &Options::log_step,
     .preset = kHeldValue,
     .check = FlagCheck::above(0),
     .words = "Steps between lines"},
});

struct Data {
  Dataset train{}, validation{};
};

Data read(const Options& o, const text::BertTokenizer& tokenizer, const std::vector<std::string>& labels) {
  const auto read_file = [&](const std::filesystem::path& file) {
    return tasks::text_dataset(tables::read_text_table(file), {.label = "label"}, tokenizer, labels);
  };
  return {.train = read_file(o.train_file), .validation = read_file(o.validation_file)};
}

models::BertBatch inputs(const Batch& batch) {
  return {batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]};
}

/// Each sample is on exactly one rank, and the ranks add what they count: the accuracy is exact.
double evaluate(models::BertForSequenceClassification& model, const Dataset& validation, const World& world) {
  const at::NoGradGuard no_grad;
  model->eval();
  const auto metric = accuracy();
  DataLoader loader(validation, evaluation_indices(validation.size, world.size(), world.rank()),
                    {.batch_size = 32, .num_workers = 1});
  for (const Batch& batch : loader) metric->update(model(inputs(batch)), batch["labels"]);
  model->train();
  return metric->compute(world);
}

void train(models::BertForSequenceClassification& model, const Data& data, const Options& o,
           const World& world) {
  DistributedDataParallel ddp(model);                    // all ranks start with rank 0's weights
  at::manual_seed(static_cast<uint64_t>(world.rank()));  // each rank drops out its own units
  FusedAdamW optimizer(parameters(model), torch::optim::AdamWOptions(o.learning_rate).weight_decay(0));
  DistributedSampler sampler(data.train.size, {.num_replicas = world.size(), .rank = world.rank()});
  int64_t step = 0;
  for (int64_t epoch = 0; epoch < o.epochs; ++epoch) {
    sampler.set_epoch(epoch);  // another order
    DataLoader loader(data.train, sampler.indices(), {.batch_size = o.batch_size, .num_workers = 1});
    for (const Batch& batch : loader) {
      optimizer.zero_grad();
      const at::Tensor loss = at::cross_entropy_loss(ddp(inputs(batch)), batch["labels"]);
      loss.backward();  // gradients are averaged while it runs
      optimizer.step();
      if (step % o.log_step == 0) {
        const at::Tensor mean = loss.detach();
        world.all_reduce(mean, {.op = ReduceOp::AVG});
        if (world.rank() == 0)  // one rank reports for all
          fmt::print("epoch {} / {}: global step: {}, loss: {}\n", epoch + 1, o.epochs, step,
                     mean.item<float>());
      }
      ++step;
    }
    const double acc = evaluate(model, data.validation, world);
    if (world.rank() == 0) fmt::print("epoch: {} : acc: {}\n", epoch, acc);
  }
}

int run(int argc, char** argv) {
  const World world = init();  // the ranks that a launcher started, or this process alone
  if (world.rank() != 0) log::set_level(log::Level::error);
  if (world.rank() != 0) disable_progress_bars();
  // A mistake is told once, by one rank.
  const auto o = on_all_ranks(world, [&] {
    return parse_table<Options>("bert_by_hand", "Trains a classifier by hand", kFlags, argc, argv);
  });
  if (!o) return 0;  // --help
  const auto tokenizer = on_all_ranks(world, [&] { return o->source.load_tokenizer({}); });
  auto model = on_all_ranks(world, [&] {  // a trained head keeps the order of its labels
    return o->source.load_model(tasks::choose_wanted_labels(kLabels, o->source.known_labels()), tokenizer,
                                {});
  });
  const Data data = on_all_ranks(world, [&] { return read(*o, tokenizer, model->config().labels); });
  train(model, data, *o, world);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  skip_library_destructors();                // LibTorch's take 0.1 s of processor time
  keep_freed_memory();                       // a step's tensors return in the next
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // each line appears at once
  return run_main("bert_by_hand", [&] { return run(argc, argv); });
}
