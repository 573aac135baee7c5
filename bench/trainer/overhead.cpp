// What the Trainer costs beside a loop written out, on the same batches of the same model, in turns in one process.
//
//   trainer_overhead MODEL_DIR TRAIN_CSV [ROUNDS [STEPS]]     prints JSON: seconds per step of both, by round
#include <ATen/ops/cross_entropy_loss.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "bench/places.h"
#include "lockstep/base/main.h"
#include "lockstep/base/memory.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/zoo.h"

namespace {

using namespace lockstep;
using Clock = std::chrono::steady_clock;

constexpr int64_t kBatch = 16;

struct Samples {
  std::vector<text::Encoding> texts{};
  std::vector<int64_t> labels{};
};

models::BertBatch inputs(const Batch& batch) {
  return {batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]};
}

Dataset make_dataset(const Samples& samples) {
  return {.size = static_cast<int64_t>(samples.texts.size()),
          .collate = [&](const std::vector<int64_t>& indices) {
            const text::PaddedBatch padded = text::pad_batch(samples.texts, samples.labels, indices);
            return Batch{{"input_ids", padded.input_ids},
                         {"token_type_ids", padded.token_type_ids},
                         {"attention_mask", padded.attention_mask},
                         {"labels", padded.labels}};
          }};
}

/// Remembers when each step began.
class StepClock : public TrainerCallback {
 public:
  std::string name() const override { return "step_clock"; }
  void on_step_begin(CallbackContext&) override { began.push_back(Clock::now()); }
  std::vector<Clock::time_point> began{};
};

/// Seconds per step, without the first and the last one.
double per_step(const std::vector<Clock::time_point>& began) {
  const std::chrono::duration<double> all = began.back() - began[1];
  return all.count() / static_cast<double>(began.size() - 2);
}

TrainingArguments arguments(int64_t steps) {
  TrainingArguments args;
  args.per_device_train_batch_size = kBatch;
  args.max_steps = steps;
  args.dataloader_num_workers = 1;
  args.save_strategy = SaveStrategy::NO;
  args.logging_steps = 1e6;
  args.disable_tqdm = true;
  args.overwrite_output_dir = true;
  args.output_dir =
      std::filesystem::temp_directory_path() / fmt::format("lockstep-trainer-overhead-{}", ::getpid());
  return args;
}

double with_trainer(models::BertForSequenceClassification& model, const Samples& samples, const World& world,
                    int64_t steps) {
  const auto clock = std::make_shared<StepClock>();
  Trainer trainer(model, arguments(steps), world,
                  {.train_dataset = make_dataset(samples),
                   .forward = [](auto& net, const Batch& batch) { return net(inputs(batch)); },
                   .callbacks = {clock}});
  trainer.train();
  std::filesystem::remove_all(trainer.args().output_dir);
  return per_step(clock->began);
}

double by_hand(models::BertForSequenceClassification& model, const Samples& samples, int64_t steps) {
  const TrainingArguments args = arguments(steps);
  model->train();
  FusedAdamW optimizer(
      parameter_groups(*model, torch::optim::AdamWOptions(args.learning_rate).weight_decay(0)));
  LRScheduler scheduler(optimizer, {.type = SchedulerType::linear, .num_training_steps = steps});
  const Dataset data = make_dataset(samples);
  TrainSampler sampler(data.size, {.batch_size = kBatch, .seed = args.seed});
  DataLoader loader(data, sampler.indices(), {.batch_size = kBatch, .num_workers = 1});
  const auto parameters = model->parameters();
  std::vector<Clock::time_point> began;
  double total = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const auto batch = loader.next();
    began.push_back(Clock::now());
    const at::Tensor loss = at::cross_entropy_loss(model(inputs(*batch)), (*batch)["labels"]);
    loss.backward();
    clip_grad_norm_(parameters, args.max_grad_norm);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    total += loss.item<double>();
  }
  if (!(total > 0)) throw Error("the loss is not finite");
  return per_step(began);
}

struct Settings {
  std::filesystem::path model_dir{}, train_file{};
  int rounds = 0;
  int64_t steps = 0;
};

constexpr auto kFlags = std::to_array<Flag<Settings>>({
    benchmarks::place<Settings>("MODEL_DIR", &Settings::model_dir, "Folder of the model that is trained"),
    benchmarks::place<Settings>("TRAIN_CSV", &Settings::train_file, "Texts and their labels"),
    {.name = "ROUNDS",
     .member = &Settings::rounds,
     .preset = "10",
     .check = FlagCheck::at_least(1, "1 or more"),
     .words = "Rounds that are measured",
     .is_place = true},
    {.name = "STEPS",
     .member = &Settings::steps,
     .preset = "22",
     .check = FlagCheck::at_least(1, "1 or more"),
     .words = "Steps of a round",
     .is_place = true},
});

int run(int argc, char** argv) {
  const auto given = parse_table<Settings>(
      "trainer_overhead", "Prints the seconds of a step of the Trainer and of a loop written out", kFlags,
      argc, argv);
  if (!given) return 0;
  const auto& [model_dir, train_file, rounds, steps] = *given;
  auto world = init();
  const auto tokenizer = text::BertTokenizer::from_directory(model_dir);
  const tables::TextTable table = tables::read_text_table(train_file);
  Samples samples;
  for (const auto& text : table.column("text")) samples.texts.push_back(tokenizer.encode(text, {}, 128));
  samples.labels = tasks::label_ids(table, "label", {"positive", "negative"});
  auto model = models::load_bert_classifier(model_dir, {"positive", "negative"});
  std::vector<double> trainer, hand;
  for (int round = -1; round < rounds; ++round) {  // the first one warms up
    const bool first = round % 2 == 0;
    double own[2];
    if (first) own[0] = with_trainer(model, samples, world, steps);
    own[1] = by_hand(model, samples, steps);
    if (!first) own[0] = with_trainer(model, samples, world, steps);
    if (round < 0) continue;
    trainer.push_back(own[0]);
    hand.push_back(own[1]);
  }
  fmt::print("{{\"trainer\": [{}], \"by_hand\": [{}]}}\n", fmt::join(trainer, ", "), fmt::join(hand, ", "));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  return run_main("trainer_overhead", [&] { return run(argc, argv); });
}
