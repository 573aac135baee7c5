// What the recipes that fine-tune a BERT have in common: their arguments, how a run begins, what a model gets and saves.
#pragma once

#include <ATen/Context.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/all_ranks.h"
#include "lockstep/trainer/opened_run.h"
#include "lockstep/trainer/trainer.h"
#include "lockstep/zoo/models/bert.h"
#include "lockstep/zoo/tasks/bert_source.h"
#include "lockstep/zoo/tasks/recipe.h"
#include "lockstep/zoo/tasks/record_entries.h"
#include "lockstep/zoo/text/build_vocab.h"

namespace lockstep::tasks {

/// What a recipe is told. `Files`: TextFiles, TokenFiles or QuestionFiles.
template <class Files>
struct BertArguments {
  BertSource source{};           ///< the model
  Files files{};                 ///< the data
  TrainingArguments training{};  ///< all else

  /// Whether there is something to train on.
  bool trains() const { return !files.train_file.empty(); }
  /// What the model is for.
  BertSource::Use use() const { return trains() ? BertSource::Use::training : BertSource::Use::prediction; }
};

/// A recipe's texts.
struct BertRecipe {
  const char* name;                                  ///< RecipeProgram::name
  const char* description;                           ///< RecipeProgram::description
  const char* train_example;                         ///< a command that trains
  const char* predict_does;                          ///< "Label new texts with the result"
  const char* predict_example;                       ///< a command that does so
  BertSource::Head head = BertSource::Head::labels;  ///< see there
};

/// start_recipe() with the flags of `args`, which it checks.
template <class Files>
std::optional<RecipeRun> start_bert(const BertRecipe& recipe, BertArguments<Files>& args, int argc,
                                    char** argv) {
  const auto add_flags = [&](RecipeFlags& flags) {
    flags.add_example("Fine-tune on two ranks and evaluate", recipe.train_example);
    flags.add_example(recipe.predict_does, recipe.predict_example);
    args.source.add_flags(flags, recipe.head);
    args.files.add_flags(flags);
  };
  const auto check = [&] {
    args.source.check(args.use());
    args.files.check(args.training);
  };
  return start_recipe(
      {.name = recipe.name, .description = recipe.description, .add_flags = add_flags, .check_flags = check},
      args.training, argc, argv);
}

/// open_run() of a training; nothing for a run that only evaluates or predicts.
template <class Files>
std::optional<OpenedRun> open_bert_run(BertArguments<Files>& args, const World& world) {
  if (!args.trains()) return std::nullopt;
  return open_run(args.training, world);
}

/// A model and the tokenizer whose ids it takes. `Net`: models::BertForSequenceClassification and its like.
template <class Net>
struct BertModel {
  text::BertTokenizer tokenizer;  ///< makes the ids
  Net net;                        ///< the model

  /// The most tokens that the model takes.
  int64_t positions() const { return net->config().max_position_embeddings; }
};

/// How a run begins.
template <class Net>
struct BertBeginning {
  BertModel<Net> model;            ///< new, trained before, or for the weights of a checkpoint
  checkpoint::RunRecord record{};  ///< what gives the weights their meaning; empty: nothing is trained
};

/// What begin_bert() is given.
struct BertData {
  ChosenLabels labels{};   ///< none for question answering
  int64_t train_size = 0;  ///< samples at least; 0: nothing is trained
  /// The texts to make a vocabulary of.
  std::function<std::vector<std::string_view>()> words{};
  /// What the files add to the record, for a model of so many positions. `saved`: the checkpoint's record.
  std::function<checkpoint::RunRecord(int64_t positions, const checkpoint::RunRecord& saved)> record{};
};

/// Makes the output directory and, for a model from scratch, its vocabulary; loads the model; compares the record of a run that
/// resumes with its checkpoint's before any file is written. All ranks call it; throws on all what one throws.
template <class Net, class Files>
BertBeginning<Net> begin_bert(const RecipeRun& recipe, const BertArguments<Files>& args,
                              const std::optional<OpenedRun>& run, const BertData& data) {
  const World& world = recipe.world;
  const OpenedRun* const opened = run ? &*run : nullptr;
  const bool resumes = run && run->checkpoint();
  const auto write_output_dir = [&] {
    make_output_dir(recipe, args.training, data.train_size, [&] {
      if (resumes || !args.source.needs_vocabulary()) return;
      text::write_vocab(vocabulary_path(args.training.output_dir, nullptr), text::build_vocab(data.words()));
    });
  };
  const auto load = [&]() -> BertModel<Net> {
    at::manual_seed(args.training.seed);  // of new weights
    const auto vocabulary = vocabulary_path(args.training.output_dir, opened);
    auto tokenizer = args.source.load_tokenizer(vocabulary);
    auto net = resumes ? args.source.template make_model<Net>(data.labels.names, tokenizer, vocabulary)
                       : args.source.template load_model<Net>(data.labels, tokenizer, vocabulary, args.use());
    return {std::move(tokenizer), std::move(net)};
  };
  if (!resumes) write_output_dir();
  BertBeginning<Net> beginning{.model = on_all_ranks(world, load)};
  if (!run) return beginning;
  const BertModel<Net>& model = beginning.model;
  beginning.record = on_all_ranks(world, [&] {
    auto record = recipe.flags;
    record.add(data.record(model.positions(), run->record()));
    record_tokenizer(record, "tokenizer", model.tokenizer.files(), model.tokenizer.vocab_size());
    record_model_config(record, model.net->config().to_json(),
                        {"architectures", "id2label", "label2id", "problem_type"});
    return record;
  });
  if (resumes) {
    check_record(*run, beginning.record, args.training, world);
    write_output_dir();
  }
  return beginning;
}

/// What the model computes of a batch.
template <class Net>
auto forward_bert(Net& net, const Batch& batch) {
  return net(models::BertBatch{batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]});
}

/// The options that do not depend on the task. `model` must outlive the Trainer.
template <class Net>
TrainerOptions<Net> bert_options(const BertModel<Net>& model, const Datasets& data) {
  const auto model_files = [&model] {
    auto files = model.tokenizer.files();
    files["config.json"] = model.net->config().to_json();
    return files;
  };
  return {.train_dataset = data.train,
          .eval_dataset = data.validation,
          .forward = [](auto& net, const Batch& batch) { return forward_bert(net, batch); },
          .model_files = model_files};
}

}  // namespace lockstep::tasks
