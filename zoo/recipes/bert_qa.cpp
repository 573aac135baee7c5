// Fine-tunes a BERT-type model to answer questions with a part of a text, evaluates it and answers new questions; on one
// process, or on many under lockrun or torchrun.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/all_ranks.h"
#include "lockstep/trainer/opened_run.h"
#include "lockstep/zoo/tasks/bert_run.h"
#include "lockstep/zoo/tasks/question_files.h"
#include "lockstep/zoo/tasks/recipe.h"

namespace {

using namespace lockstep;

using Arguments = tasks::BertArguments<tasks::QuestionFiles>;
using Answerer = models::BertForQuestionAnswering;
using Model = tasks::BertModel<Answerer>;

constexpr tasks::BertRecipe kRecipe{
    .name = "bert_qa",
    .description = "Fine-tunes a BERT-type model to answer questions about texts, and evaluates it",
    .train_example =
        "lockrun --nproc-per-node 2 bert_qa --model-name-or-path DIR --train-file train-v1.1.json "
        "--validation-file dev-v1.1.json --output-dir out",
    .predict_does = "Answer new questions with the result",
    .predict_example = "bert_qa --model-name-or-path out --do-predict --test-file new.json --output-dir new",
    .head = tasks::BertSource::Head::fixed};

tasks::Datasets datasets(const Arguments& args, const tasks::WindowSets& windows, const Model& model) {
  const auto options = args.files.window_options(model.positions());
  const auto make = [&](const std::shared_ptr<const tasks::QuestionWindows>& some) {
    return some == nullptr ? Dataset{} : tasks::window_dataset(some, model.tokenizer, options);
  };
  return {.train = make(windows.train), .validation = make(windows.validation), .test = make(windows.test)};
}

/// How many questions each file has, and what of it is left out.
std::string about(const tasks::WindowSets& windows) {
  std::string text, left_out;
  const auto add = [&](const char* what, const std::shared_ptr<const tasks::QuestionWindows>& some) {
    if (some == nullptr) return;
    text += fmt::format("{}{} {} questions in {} windows", text.empty() ? "" : ", ", what, some->file.size(),
                        some->windows.size());
    if (some->file.skipped_rows > 0) {
      left_out += fmt::format("\nleft out {} bad question{}; the first: {}", some->file.skipped_rows,
                              some->file.skipped_rows == 1 ? "" : "s", some->file.first_skipped);
    }
    if (some->skipped > 0) {
      left_out += fmt::format("\nleft out {} question{} that left too little room to the text; the first: {}",
                              some->skipped, some->skipped == 1 ? "" : "s", some->first_skipped);
    }
  };
  add("training", windows.train);
  add("validation", windows.validation);
  add("test", windows.test);
  return text + left_out;
}

/// The mean of the cross entropies of the answer's start and end, as transformers' model has it.
Loss loss_of(const at::Tensor& logits, const Batch& batch, double label_smoothing) {
  const at::Tensor& labels = batch["labels"];
  const auto of = [&](int64_t which) {
    return cross_entropy_sum(logits.select(2, which), labels.select(1, which),
                             {.label_smoothing = label_smoothing})
        .sum;
  };
  return {.sum = (of(0) + of(1)) / 2,
          .count = static_cast<double>(labels.size(0)),
          .outputs = logits.detach(),
          .labels = labels};
}

/// The answers to the questions of a data set, of whose windows `labels` tells the numbers. Also writes them, as run_qa.py does.
Metrics measure(const Arguments& args, const tasks::WindowSets& windows, const at::Tensor& outputs,
                const at::Tensor& labels) {
  const at::Tensor numbers = labels.select(1, 2).contiguous();
  std::vector<int64_t> samples(numbers.const_data_ptr<int64_t>(),
                               numbers.const_data_ptr<int64_t>() + numbers.numel());
  const bool is_test = windows.validation == nullptr ||
                       samples.at(0) >= static_cast<int64_t>(windows.validation->windows.size());
  const auto& set = is_test ? *windows.test : *windows.validation;
  for (auto& sample : samples) sample -= set.first_sample;
  const auto answers = tasks::find_answers(set, samples, outputs, args.files.answers);
  if (!is_test && args.training.fast_dev_run == 0)
    tasks::write_answers(args.training.output_dir, "eval", set, answers);
  Metrics metrics;
  for (const auto& [name, value] : tasks::score_answers(set, answers, args.files.answers))
    metrics[name] = value;
  return metrics;
}

TrainerOptions<Answerer> trainer_options(const Arguments& args, const Model& model,
                                         const tasks::WindowSets& windows, const tasks::Datasets& data) {
  auto options = tasks::bert_options(model, data);
  options.compute_loss = [smoothing = args.training.label_smoothing_factor](auto& net, const Batch& batch) {
    return loss_of(tasks::forward_bert(net, batch), batch, smoothing);
  };
  options.compute_metrics = [&args, &windows](const at::Tensor& outputs, const at::Tensor& labels) {
    return measure(args, windows, outputs, labels);
  };
  return options;
}

void write_predictions(const Arguments& args, const tasks::QuestionWindows& windows,
                       const at::Tensor& outputs) {
  std::vector<int64_t> samples;
  for (int64_t sample = 0; sample < outputs.size(0); ++sample) samples.push_back(sample);
  tasks::write_answers(args.training.output_dir, "predict", windows,
                       tasks::find_answers(windows, samples, outputs, args.files.answers));
}

int run(int argc, char** argv) {
  Arguments args;
  const auto recipe = tasks::start_bert(kRecipe, args, argc, argv);
  if (!recipe) return 0;
  const World& world = recipe->world;

  std::optional<OpenedRun> run = tasks::open_bert_run(args, world);
  tasks::QuestionSets sets = on_all_ranks(world, [&] {
    args.source.check_directory();
    return args.files.read();
  });
  const auto words = [&] {
    std::vector<std::string_view> texts(sets.train->contexts.begin(), sets.train->contexts.end());
    for (const auto& question : sets.train->questions) texts.push_back(question.question);
    return texts;
  };
  const auto record = [&](int64_t positions, const checkpoint::RunRecord& saved) {
    return args.files.record(sets, positions, saved);
  };
  // Windows are not known yet; there is one for each question at least.
  auto beginning = tasks::begin_bert<Answerer>(
      *recipe, args, run,
      {.labels = {}, .train_size = sets.train ? sets.train->size() : 0, .words = words, .record = record});
  const Model& model = beginning.model;
  const tasks::WindowSets windows = on_all_ranks(
      world, [&] { return args.files.windows(std::move(sets), model.tokenizer, model.positions()); });
  const tasks::Datasets data = datasets(args, windows, model);

  if (world.rank() == 0) {
    const auto size = tasks::parameters_in_words(*model.net);
    tasks::print_start(*recipe, args.training, data.train.size, fmt::format("{}, {}", size, about(windows)));
  }
  auto options = trainer_options(args, model, windows, data);
  options.on_samples = tasks::log_samples(*recipe);
  options.record = std::move(beginning.record);
  options.opened_run = std::move(run);
  Trainer trainer(model.net, args.training, world, std::move(options));
  tasks::train_and_test(*recipe, trainer, data, [&](const Trainer::Prediction& prediction) {
    write_predictions(args, *windows.test, prediction.outputs);
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::tasks::run_recipe("bert_qa", [&] { return run(argc, argv); });
}
