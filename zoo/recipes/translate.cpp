// Trains a transformer to translate, from two files of aligned sentences, and translates with it; on one process,
// or on many under lockrun or torchrun.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/trainer/best_metric.h"
#include "lockstep/trainer/flags.h"
#include "lockstep/trainer/opened_run.h"
#include "lockstep/zoo/tasks/flag_errors.h"
#include "lockstep/zoo/tasks/recipe.h"
#include "lockstep/zoo/tasks/record_entries.h"
#include "lockstep/zoo/tasks/sentence_pairs.h"
#include "lockstep/zoo/tasks/translation_options.h"
#include "lockstep/zoo/tasks/translator.h"
#include "lockstep/zoo/text/metrics/text_metric.h"

namespace {

using namespace lockstep;
namespace fs = std::filesystem;

struct Arguments {
  tasks::TranslationOptions options{};
  TrainingArguments training{};
};

struct Data {
  tasks::SentencePairs train_pairs{}, validation_pairs{};
  tasks::TranslationTokenizers tokenizers{};
  std::shared_ptr<const tasks::EncodedPairs> train{},
      validation{};  ///< validation: null if nothing is validated
};

/// Translates with a model in training, whose weights it brings into the layout of decoding when they are first needed
/// after a change.
class CurrentTranslator {
 public:
  CurrentTranslator(models::GenerateOptions generate, const tasks::SpecialTokens& special)
      : generate_(generate) {
    generate_.start_token_id = special.start;
    generate_.eos_token_id = special.end;
  }
  /// Ids of the translations.
  std::vector<std::vector<int64_t>> translate(const models::Transformer& model,
                                              const std::vector<std::vector<int64_t>>& sources) {
    if (!generator_) generator_ = std::make_unique<models::Generator>(model);
    std::vector<std::vector<int64_t>> ids;
    for (auto& sentence : generator_->generate(sources, generate_).sentences) ids.push_back(sentence.ids);
    return ids;
  }
  void weights_changed() { generator_.reset(); }

 private:
  models::GenerateOptions generate_;
  std::unique_ptr<models::Generator> generator_;
};

/// Prints examples after an evaluation, and gives checkpoints of whole epochs their names.
class EpochReport : public TrainerCallback {
 public:
  EpochReport(const tasks::TranslationOptions& options, const Data& data, models::Transformer model,
              CurrentTranslator& translator)
      : options_(options), data_(data), model_(std::move(model)), translator_(translator) {}
  std::string name() const override { return "EpochReport"; }

  // The Trainer has tried one sample before it loaded the checkpoint.
  void on_train_begin(CallbackContext& /*context*/) override { translator_.weights_changed(); }

  void on_step_end(CallbackContext& context) override {
    translator_.weights_changed();
    name_checkpoints(context);
  }

  void on_evaluate(CallbackContext& context) override {
    translator_.weights_changed();  // it may hold averaged weights, which the model no longer has
    if (context.group.rank() == 0) print_examples();
    translator_.weights_changed();
  }

  void on_save(CallbackContext& context) override {
    const double epoch = context.state.epoch;
    constexpr double kRounding = 1e-9;
    if (epoch > .5 && std::abs(epoch - std::round(epoch)) < kRounding) {
      unnamed_[std::llround(epoch) - 1] = checkpoint::checkpoint_name(context.state.global_step);
    }
    name_checkpoints(context);
  }
  void on_train_end(CallbackContext& context) override {
    translator_.weights_changed();  // a checkpoint or the best model may have been loaded without a step
    name_checkpoints(context);
  }

 private:
  // A checkpoint appears some steps after it was begun.
  void name_checkpoints(const CallbackContext& context) {
    if (context.group.rank() != 0 || unnamed_.empty()) return;
    const fs::path& folder = context.args.output_dir;
    std::erase_if(unnamed_, [&](const auto& entry) {
      if (!fs::is_directory(folder / entry.second)) return false;
      const fs::path link = folder / tasks::epoch_name(options_.model_basename, entry.first);
      const fs::path temporary = fs::path(link) += ".new";
      std::error_code ignored;
      fs::remove(temporary, ignored);
      fs::create_directory_symlink(entry.second, temporary);
      fs::rename(temporary, link);
      return true;
    });
    // save_total_limit removes checkpoints; their names go with them.
    for (const auto& entry : fs::directory_iterator(folder)) {
      const bool ours = entry.path().filename().string().starts_with(options_.model_basename);
      if (ours && entry.is_symlink() && !fs::exists(entry.path())) fs::remove(entry.path());
    }
  }

  void print_examples() {
    if (!data_.validation) return;
    const auto& sources = data_.validation->sources;
    const auto& rows = data_.validation->rows;
    const auto all = static_cast<int64_t>(rows.size());
    const auto count = std::min(options_.validation_examples, all);
    if (count == 0) return;
    std::vector<std::vector<int64_t>> chosen;
    std::vector<const tasks::SentencePair*> shown;
    for (int64_t i = 0; i < count; ++i) {
      const auto place = static_cast<size_t>(i * all / count);
      chosen.push_back(sources[place]);
      shown.push_back(&data_.validation_pairs.pairs[static_cast<size_t>(rows[place])]);
    }
    const auto translations = translator_.translate(model_, chosen);
    std::string text;
    for (size_t i = 0; i < shown.size(); ++i) {
      text += fmt::format("   source: {}\n   target: {}\npredicted: {}\n\n", shown[i]->source,
                          shown[i]->target, tasks::text_of(translations[i], data_.tokenizers));
    }
    fmt::print("{}", text);
    std::fflush(stdout);
  }

  const tasks::TranslationOptions& options_;
  const Data& data_;
  models::Transformer model_;
  CurrentTranslator& translator_;
  std::map<int64_t, std::string> unnamed_;  ///< checkpoints of whole epochs, from 0
};

void add_flags(tasks::RecipeFlags& flags, tasks::TranslationOptions& options) {
  flags.add_example("Train on two ranks, from the sentences of libreoffice_help.py (see lockstep data)",
                    "lockrun --nproc-per-node 2 translate --data-dir help --lang-src en-US --lang-tgt it "
                    "--drop-overlong --output-dir weights");
  flags.add_example("Continue after the last epoch",
                    "translate --data-dir help --lang-src en-US --preload latest --output-dir weights");
  flags.add_example("Translate a file with the result", "translate --model-dir weights --input new.txt");
  options.add_training_flags(flags);
  options.add_translation_flags(flags);
}

using Errors = tasks::FlagErrors<tasks::kNamedTranslationFlags, tasks::kTrainingFlags>;

/// Completes the arguments: what one flag says about another, and what is in the directories that they name.
void complete(Arguments& args) {
  args.options.check(args.training);
  const auto& [options, training] = args;
  if (options.preload.empty()) return;
  const auto found = tasks::find_preload(training.output_dir, options.model_basename, options.preload);
  // If no epoch has ended yet, a run that was stopped in the first one goes on too.
  args.training.resume_from_checkpoint = found.empty() ? "auto" : found.string();
}

using Side = std::string tasks::SentencePair::*;

std::shared_ptr<const text::WordLevelTokenizer> train_tokenizer(const tasks::SentencePairs& pairs, Side side,
                                                                const tasks::TranslationOptions& o) {
  std::vector<std::string> texts;
  for (const auto& pair : pairs.pairs) texts.push_back(pair.*side);
  return std::make_shared<const text::WordLevelTokenizer>(
      text::WordLevelTokenizer::train(texts, {.vocab_size = o.vocab_size, .min_frequency = o.min_frequency}));
}

/// Those in --tokenizer-dir; otherwise the checkpoint's if the run resumes, or new ones of the training pairs.
tasks::TranslationTokenizers make_tokenizers(const Arguments& args, const tasks::SentencePairs& pairs,
                                             const OpenedRun& run) {
  const auto& o = args.options;
  const fs::path& folder = o.tokenizer_dir.empty() ? args.training.output_dir : o.tokenizer_dir;
  const auto source_file = folder / tasks::tokenizer_file_name(o.lang_src);
  const auto target_file = folder / tasks::tokenizer_file_name(o.lang_tgt);
  if (!o.tokenizer_dir.empty())
    return tasks::TranslationTokenizers::from_files(source_file, o.lang_src, target_file, o.lang_tgt);
  if (run.checkpoint()) return tasks::TranslationTokenizers::from_directory(run.checkpoint()->path());
  const auto source = train_tokenizer(pairs, &tasks::SentencePair::source, o);
  return {.source_language = o.lang_src,
          .target_language = o.lang_tgt,
          .source_file = source_file,
          .target_file = target_file,
          .source = source,
          .target = train_tokenizer(pairs, &tasks::SentencePair::target, o),
          .special = tasks::SpecialTokens::of(*source, source_file)};
}

Data read(const Arguments& args, const OpenedRun& run) {
  const auto& o = args.options;
  Data data{.train_pairs = tasks::read_sentence_pairs(o.source_file, o.target_file)};
  if (!o.validation_source_file.empty()) {
    data.validation_pairs = tasks::read_sentence_pairs(o.validation_source_file, o.validation_target_file);
  } else if (o.validation_split > 0) {
    data.validation_pairs = tasks::split_off(data.train_pairs, o.validation_split, args.training.seed);
  }
  data.tokenizers = make_tokenizers(args, data.train_pairs, run);
  const auto encode = [&](const tasks::SentencePairs& pairs) {
    const auto& [source_language, target_language, source_file, target_file, source, target, special] =
        data.tokenizers;
    return std::make_shared<const tasks::EncodedPairs>(tasks::encode_pairs(
        pairs, *source, *target, special, {.seq_len = o.model.seq_len, .drop_overlong = o.drop_overlong}));
  };
  data.train = encode(data.train_pairs);
  if (!data.validation_pairs.pairs.empty()) data.validation = encode(data.validation_pairs);
  return data;
}

tasks::Datasets make_datasets(const Data& data, int64_t tokens_per_batch) {
  const auto& special = data.tokenizers.special;
  tasks::Datasets sets{.train = tasks::translation_dataset(data.train, special, tokens_per_batch)};
  if (data.validation) sets.validation = tasks::translation_dataset(data.validation, special, 0);
  return sets;
}

models::Transformer load(const Arguments& args, const tasks::TranslationTokenizers& tokenizers) {
  at::manual_seed(args.training.seed);  // of the weights
  auto config = args.options.model;
  config.source_vocab_size = tokenizers.source->vocab_size();
  config.target_vocab_size = tokenizers.target->vocab_size();
  config.pad_token_id = tokenizers.special.padding;
  return models::Transformer(config);
}

std::string describe(const Arguments& args, const Data& data, const models::Transformer& model) {
  const auto& o = args.options;
  const auto dropped = data.train->dropped + (data.validation ? data.validation->dropped : 0);
  const auto& first_dropped = data.train->dropped > 0 || !data.validation ? data.train->first_dropped
                                                                          : data.validation->first_dropped;
  return fmt::format(
      "{}, {} to {}, {} and {} words, {} pairs to train on, {} to validate on{}{}",
      tasks::parameters_in_words(*model), o.lang_src, o.lang_tgt, data.tokenizers.source->vocab_size(),
      data.tokenizers.target->vocab_size(), data.train->rows.size(),
      data.validation ? data.validation->rows.size() : 0,
      dropped > 0 ? fmt::format(", {} too long and left out (the first: {})", dropped, first_dropped) : "",
      o.tokens_per_batch > 0 ? fmt::format("; a sample is a batch of {} tokens", o.tokens_per_batch) : "");
}

constexpr int64_t kNoToken = -100;

/// Ids of the translations, filled up with kNoToken.
at::Tensor translate_batch(CurrentTranslator& translator, const models::Transformer& model,
                           const at::Tensor& source_ids, int64_t padding) {
  std::vector<std::vector<int64_t>> sources;
  for (const at::Tensor& row : source_ids.unbind(0)) {
    const at::Tensor ids = row.masked_select(row.ne(padding));
    sources.emplace_back(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.size(0));
  }
  return models::pad_ids(translator.translate(model, sources), kNoToken);
}

/// The translations of translate_batch() as texts, and what they should be.
text::Texts decode_texts(const Data& data, const at::Tensor& translations, const at::Tensor& samples) {
  text::Texts texts;
  for (int64_t i = 0; i < samples.size(0); ++i) {
    const at::Tensor row = translations[i].masked_select(translations[i].ge(0));
    const auto* first = row.const_data_ptr<int64_t>();
    texts.first.push_back(tasks::text_of({first, first + row.size(0)}, data.tokenizers));
    const auto sample = static_cast<size_t>(samples[i].item<int64_t>());
    texts.second.push_back(data.validation_pairs.pairs[sample].target);
  }
  return texts;
}

/// What gives the weights their meaning. The files of the tokenizers are there.
checkpoint::RunRecord make_record(const tasks::RecipeRun& recipe, const Data& data,
                                  const models::Transformer& model, const OpenedRun& run) {
  const auto& tokenizers = data.tokenizers;
  auto record = recipe.flags;
  tasks::record_train_data(record, data.train_pairs.fingerprint);
  tasks::record_validation_data(
      record, data.validation ? std::optional(data.validation_pairs.fingerprint) : std::nullopt,
      run.record());
  tasks::record_tokenizer(record, "source_tokenizer", {{"tokenizer.json", read_file(tokenizers.source_file)}},
                          tokenizers.source->vocab_size());
  tasks::record_tokenizer(record, "target_tokenizer", {{"tokenizer.json", read_file(tokenizers.target_file)}},
                          tokenizers.target->vocab_size());
  tasks::record_model_config(record, model->config().to_json());
  return record;
}

/// All that it is given must outlive the Trainer.
std::vector<std::shared_ptr<Metric>> make_metrics(
    const std::function<text::Texts(const at::Tensor& translations, const at::Tensor& samples)>& texts) {
  return {text::metric_of_texts(text::bleu(), texts), text::metric_of_texts(text::char_error_rate(), texts),
          text::metric_of_texts(text::word_error_rate(), texts)};
}

TrainerOptions<models::Transformer> trainer_options(const Arguments& args, const Data& data,
                                                    const tasks::Datasets& sets,
                                                    const models::Transformer& model,
                                                    CurrentTranslator& translator) {
  const auto compute_loss = [&translator, padding = data.tokenizers.special.padding,
                             smoothing = args.training.label_smoothing_factor](auto& net,
                                                                               const Batch& batch) {
    const at::Tensor& target = batch["target_ids"];
    const at::Tensor logits = net(models::TransformerBatch{batch["source_ids"], target});
    Loss loss = cross_entropy_sum(logits, batch["labels"].masked_select(target.ne(padding)),
                                  {.ignore_index = padding, .label_smoothing = smoothing});
    if (!c10::GradMode::is_enabled())
      loss.outputs = translate_batch(translator, net.module(), batch["source_ids"], padding);
    loss.labels = batch["sample"];
    return loss;
  };
  const auto texts = [&data](const at::Tensor& translations, const at::Tensor& samples) {
    return decode_texts(data, translations, samples);
  };
  // Read now: they may lie in a checkpoint that this run removes.
  const auto model_files = [files = data.tokenizers.files(), model] {
    auto all = files;
    all["config.json"] = model->config().to_json();
    return all;
  };
  return {.train_dataset = sets.train,
          .eval_dataset = sets.validation,
          .compute_loss = compute_loss,
          .metrics = make_metrics(texts),
          .callbacks = {std::make_shared<EpochReport>(args.options, data, model, translator)},
          .model_files = model_files};
}

int train(Arguments& args, int argc, char** argv) {
  const auto recipe =
      tasks::start_recipe({.name = "translate",
                           .description = "Trains a transformer to translate, and translates with it",
                           .add_flags = [&](tasks::RecipeFlags& flags) { add_flags(flags, args.options); },
                           .check_flags = [&] { complete(args); }},
                          args.training, argc, argv);
  if (!recipe) return 0;
  const World& world = recipe->world;

  OpenedRun run = open_run(args.training, world);
  const bool resumes = run.checkpoint().has_value();
  const Data data = on_all_ranks(world, [&] { return read(args, run); });
  const tasks::Datasets sets =
      on_all_ranks(world, [&] { return make_datasets(data, args.options.tokens_per_batch); });
  if (!data.validation)
    args.training.eval_strategy = IntervalStrategy::NO;  // --validation-split 0 asks for that
  on_all_ranks(world, [&] { check_best_metric(args.training, make_metrics({})); });
  const auto write_output_dir = [&] {
    tasks::make_output_dir(*recipe, args.training, sets.train.size, [&] {
      if (resumes || !args.options.tokenizer_dir.empty()) return;
      data.tokenizers.source->save(data.tokenizers.source_file);
      data.tokenizers.target->save(data.tokenizers.target_file);
    });
  };
  if (!resumes) write_output_dir();
  const models::Transformer model = on_all_ranks(world, [&] { return load(args, data.tokenizers); });
  auto record = on_all_ranks(world, [&] { return make_record(*recipe, data, model, run); });
  if (resumes) {
    check_record(run, record, args.training, world);
    write_output_dir();
  }

  if (world.rank() == 0)
    tasks::print_start(*recipe, args.training, sets.train.size, describe(args, data, model));
  CurrentTranslator translator(args.options.generate, data.tokenizers.special);
  auto options = trainer_options(args, data, sets, model, translator);
  options.on_samples = tasks::log_samples(*recipe);
  options.record = std::move(record);
  options.opened_run = std::move(run);
  TrainingArguments training = args.training;
  training.label_smoothing_factor = 0;  // compute_loss has it
  Trainer trainer(model, training, world, std::move(options));
  tasks::train_and_test(*recipe, trainer, sets);
  return 0;
}

std::vector<std::string> read_lines(std::istream& stream) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.emplace_back(lines.empty() ? skip_byte_order_mark(line) : line);
  }
  return lines;
}

int translate_lines(tasks::Translator& translator, const tasks::TranslationOptions& o) {
  std::vector<std::string> lines;
  if (o.input == "-") {
    lines = read_lines(std::cin);
  } else {
    std::ifstream file(o.input);
    if (!file) throw FileError(fmt::format("cannot read {}: {}", o.input.string(), std::strerror(errno)));
    lines = read_lines(file);
    if (file.bad())  // a directory
      throw FileError(fmt::format("cannot read {}: {}", o.input.string(), std::strerror(errno)));
  }
  const auto name = o.input == "-" ? "standard input" : o.input.string();
  tasks::Translations translations;
  try {
    translations = translator.translate(lines, o.translate_options());
  } catch (const ValueError& error) {
    throw ValueError(fmt::format("{}: {}", name, error.what()));
  }
  for (const auto& line : translations.texts) fmt::print("{}\n", line);
  if (std::fflush(stdout) != 0)
    throw FileError(fmt::format("cannot write the translations: {}", std::strerror(errno)));
  if (!translations.overlong.empty()) {
    fmt::print(stderr, "translate: {} of {} lines of {} {}; the first: {}. {}\n",
               translations.overlong.size(), lines.size(), name,
               o.overlong == "cut" ? "were cut" : "are too long, and their translations empty",
               translations.first_overlong,
               o.overlong == "cut" ? "Cut long lines into sentences"
                                   : Errors::format("--overlong cut translates their beginnings"));
  }
  return 0;
}

int translate_by_hand(tasks::Translator& translator, const tasks::TranslationOptions& o) {
  const auto& tokenizers = translator.tokenizers();
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  const auto prompt = [&] {
    if (!terminal) return;
    fmt::print("{}> ", tokenizers.source_language);
    std::fflush(stdout);
  };
  prompt();
  bool is_first = true;
  for (std::string line; std::getline(std::cin, line); prompt()) {
    const std::string sentence(std::exchange(is_first, false) ? skip_byte_order_mark(line) : line);
    try {
      auto options = o.translate_options();
      if (options.overlong == tasks::Overlong::skip)
        options.overlong = tasks::Overlong::error;  // to say so at once
      fmt::print("{}\n", translator.translate({sentence}, options).texts[0]);
    } catch (const ValueError& error) {
      fmt::print(stderr, "{}\n", error.what());
    }
    std::fflush(stdout);
  }
  if (terminal) fmt::print("\n");
  return 0;
}

int translate(Arguments& args, int argc, char** argv) {
  tasks::TranslationOptions& o = args.options;
  const auto add_flags = [&](CommandLine program) {
    tasks::RecipeFlags flags(program);
    o.add_training_flags(flags);
    o.add_translation_flags(flags);
    add_training_flags(program, args.training);
  };
  if (!parse_command_line("translate", "Translates with a trained model", add_flags, argc, argv)) return 0;
  if (o.interactive && !o.input.empty())
    Errors::refuse("--interactive and --input exclude each other; give one");
  const auto& directory = o.model_dir.empty() ? args.training.output_dir : o.model_dir;
  auto translator = tasks::Translator::from_directory(directory);
  return o.interactive ? translate_by_hand(translator, o) : translate_lines(translator, o);
}

/// The value of `--flag VALUE` or `--flag=VALUE`, "" without one; nullptr where the flag is not given.
const char* given(int argc, char** argv, Errors::Name flag) {
  for (int i = 1; i < argc; ++i) {
    std::string_view word = argv[i];
    const size_t equals = std::min(word.find('='), word.size());
    std::string name(word.substr(0, equals));
    std::replace(name.begin() + std::min<ptrdiff_t>(2, static_cast<ptrdiff_t>(name.size())), name.end(), '_',
                 '-');
    if (name != std::string_view(flag)) continue;
    if (equals < word.size()) return argv[i] + equals + 1;
    return i + 1 < argc ? argv[i + 1] : "";
  }
  return nullptr;
}

int run(int argc, char** argv) {
  Arguments args;
  const auto has = [&](Errors::Name flag) { return given(argc, argv, flag) != nullptr; };
  const bool translates = has("--interactive") || has("--input");
  if (!translates) tasks::set_translation_defaults(args.training);
  // What the configuration says is a default for the flags, so it is read before them.
  if (const char* const config = given(argc, argv, "--config"))
    args.options.read_config(config, args.training);
  if (translates) return translate(args, argc, argv);
  args.options.batch_size_given = has("--per-device-train-batch-size");
  if (args.options.batch_size_given && !has("--tokens-per-batch")) args.options.tokens_per_batch = 0;
  return train(args, argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::tasks::run_recipe("translate", [&] { return run(argc, argv); });
}
