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
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/main.h"
#include "lockstep/base/memory.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/trainer/flags.h"
#include "lockstep/zoo/tasks/recipe.h"
#include "lockstep/zoo/tasks/sentence_pairs.h"
#include "lockstep/zoo/tasks/translation_options.h"
#include "lockstep/zoo/tasks/translator.h"
#include "lockstep/zoo/text/metrics/text_metric.h"

namespace {

using namespace lockstep;
namespace fs = std::filesystem;

/// The model's weights in the layout of decoding, made when they are first needed after a change.
class CurrentGenerator {
 public:
  models::Generator& of(const models::Transformer& model) {
    if (!generator_) generator_ = std::make_unique<models::Generator>(model);
    return *generator_;
  }
  void weights_changed() { generator_.reset(); }

 private:
  std::unique_ptr<models::Generator> generator_;
};

/// Prints examples after an evaluation, and gives checkpoints of whole epochs their names.
class EpochReport : public TrainerCallback {
 public:
  /// `encoded`: null where nothing is validated.
  EpochReport(const tasks::TranslationOptions& options, const tasks::SentencePairs& pairs,
              std::shared_ptr<const tasks::EncodedPairs> encoded,
              const tasks::TranslationTokenizers& tokenizers, models::Transformer model,
              std::shared_ptr<CurrentGenerator> generator)
      : options_(options),
        pairs_(pairs),
        encoded_(std::move(encoded)),
        tokenizers_(tokenizers),
        model_(std::move(model)),
        generator_(std::move(generator)) {}
  std::string name() const override { return "EpochReport"; }

  void on_step_end(CallbackContext& context) override {
    generator_->weights_changed();
    name_checkpoints(context);
  }

  void on_evaluate(CallbackContext& context) override {
    generator_->weights_changed();  // it may hold averaged weights, which the model no longer has
    if (context.group.rank() == 0) print_examples();
    generator_->weights_changed();
  }

  void on_save(CallbackContext& context) override {
    const double epoch = context.state.epoch;
    constexpr double rounding = 1e-9;
    if (epoch > .5 && std::abs(epoch - std::round(epoch)) < rounding) {
      unnamed_[std::llround(epoch) - 1] = checkpoint::checkpoint_name(context.state.global_step);
    }
    name_checkpoints(context);
  }
  void on_train_end(CallbackContext& context) override {
    generator_->weights_changed();  // a checkpoint or the best model may have been loaded without a step
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
    if (!encoded_) return;
    const auto count =
        std::min<int64_t>(options_.validation_examples, static_cast<int64_t>(encoded_->rows.size()));
    if (count == 0) return;
    std::vector<std::vector<int64_t>> sources;
    std::vector<const tasks::SentencePair*> shown;
    for (int64_t i = 0; i < count; ++i) {
      const auto place = static_cast<size_t>(i * static_cast<int64_t>(encoded_->rows.size()) / count);
      sources.push_back(encoded_->sources[place]);
      shown.push_back(&pairs_.pairs[static_cast<size_t>(encoded_->rows[place])]);
    }
    auto generate = options_.generate;
    generate.start_token_id = tokenizers_.special.start;
    generate.eos_token_id = tokenizers_.special.end;
    const auto result = generator_->of(model_).generate(sources, generate);
    std::string text;
    for (size_t i = 0; i < shown.size(); ++i) {
      text += fmt::format("   source: {}\n   target: {}\npredicted: {}\n\n", shown[i]->source,
                          shown[i]->target, text_of(result.sentences[i].ids, tokenizers_));
    }
    fmt::print("{}", text);
    std::fflush(stdout);
  }

  const tasks::TranslationOptions& options_;
  const tasks::SentencePairs& pairs_;
  std::shared_ptr<const tasks::EncodedPairs> encoded_;
  const tasks::TranslationTokenizers& tokenizers_;
  models::Transformer model_;
  std::shared_ptr<CurrentGenerator> generator_;
  std::map<int64_t, std::string> unnamed_;  ///< checkpoints of whole epochs, from 0
};

class Translate : public tasks::Recipe {
 public:
  explicit Translate(tasks::TranslationOptions& given) : o(given) { tasks::set_translation_defaults(args); }

 private:
  tasks::TranslationOptions& o;
  tasks::SentencePairs train_pairs, validation_pairs;
  std::shared_ptr<tasks::EncodedPairs> train_ids, validation_ids;
  tasks::TranslationTokenizers tokenizers;
  models::Transformer model{nullptr};
  std::shared_ptr<CurrentGenerator> generator = std::make_shared<CurrentGenerator>();

  void add_flags(CommandLine program) override {
    program.add_example("Train on two ranks, from the sentences of libreoffice_help.py (see lockstep data)",
                        "lockrun --nproc-per-node 2 translate --data-dir help --lang-src en-US --lang-tgt it "
                        "--drop-overlong --output-dir weights");
    program.add_example("Continue after the last epoch",
                        "translate --data-dir help --lang-src en-US --preload latest --output-dir weights");
    program.add_example("Translate a file with the result", "translate --model-dir weights --input new.txt");
    o.add_training_flags(program);
    o.add_translation_flags(program);
  }

  void check_flags() override {
    o.check(args);
    const auto found = tasks::find_preload(args.output_dir, o.model_basename, o.preload);
    // Where no epoch has ended yet, a run that was stopped in the first one goes on too.
    if (!o.preload.empty()) args.resume_from_checkpoint = found.empty() ? "auto" : found.string();
  }

  fs::path tokenizer_path(const std::string& language) const {
    return (o.tokenizer_dir.empty() ? args.output_dir : o.tokenizer_dir) /
           tasks::tokenizer_file_name(language);
  }

  void read() override {
    train_pairs = tasks::read_sentence_pairs(o.source_file, o.target_file);
    if (!o.validation_source_file.empty()) {
      validation_pairs = tasks::read_sentence_pairs(o.validation_source_file, o.validation_target_file);
    } else if (o.validation_split > 0) {
      validation_pairs = tasks::split_off(train_pairs, o.validation_split, args.seed);
    }
    const auto source_file = tokenizer_path(o.lang_src), target_file = tokenizer_path(o.lang_tgt);
    if (o.tokenizer_dir.empty()) {
      tokenizers = {.source_language = o.lang_src,
                    .target_language = o.lang_tgt,
                    .source_file = source_file,
                    .target_file = target_file,
                    .source = trained([](const tasks::SentencePair& pair) { return pair.source; }),
                    .target = trained([](const tasks::SentencePair& pair) { return pair.target; }),
                    .special = {}};
      tokenizers.special = tasks::SpecialTokens::of(*tokenizers.source, source_file);
    } else {
      tokenizers = tasks::TranslationTokenizers::from_files(source_file, o.lang_src, target_file, o.lang_tgt);
    }
    const auto encoded = [&](const tasks::SentencePairs& pairs) {
      return std::make_shared<tasks::EncodedPairs>(
          tasks::encode_pairs(pairs, *tokenizers.source, *tokenizers.target, tokenizers.special,
                              {.seq_len = o.model.seq_len, .drop_overlong = o.drop_overlong}));
    };
    train_ids = encoded(train_pairs);
    train = tasks::translation_dataset(train_ids, tokenizers.special, o.tokens_per_batch);
    if (!validation_pairs.pairs.empty()) {
      validation_ids = encoded(validation_pairs);
      validation = tasks::translation_dataset(validation_ids, tokenizers.special, 0);
    } else {
      args.eval_strategy = IntervalStrategy::NO;  // --validation-split 0 asks for that
    }
    train_size = train.size;
  }

  template <class Side>
  std::shared_ptr<const text::WordLevelTokenizer> trained(const Side& side) const {
    std::vector<std::string> texts;
    for (const auto& pair : train_pairs.pairs) texts.push_back(side(pair));
    return std::make_shared<const text::WordLevelTokenizer>(text::WordLevelTokenizer::train(
        texts, {.vocab_size = o.vocab_size, .min_frequency = o.min_frequency}));
  }

  void prepare() override {
    if (o.tokenizer_dir.empty()) {
      tokenizers.source->save(tokenizers.source_file);
      tokenizers.target->save(tokenizers.target_file);
    }
  }

  void load() override {
    o.model.source_vocab_size = tokenizers.source->vocab_size();
    o.model.target_vocab_size = tokenizers.target->vocab_size();
    o.model.pad_token_id = tokenizers.special.padding;
    model = models::Transformer(o.model);
  }

  std::string about() const override {
    const auto dropped = train_ids->dropped + (validation_ids ? validation_ids->dropped : 0);
    return fmt::format(
        "{}, {} to {}, {} and {} words, {} pairs to train on, {} to validate on{}{}",
        tasks::parameters_in_words(*model), o.lang_src, o.lang_tgt, o.model.source_vocab_size,
        o.model.target_vocab_size, train_ids->rows.size(), validation_ids ? validation_ids->rows.size() : 0,
        dropped > 0 ? fmt::format(", {} too long and left out", dropped) : "",
        o.tokens_per_batch > 0 ? fmt::format("; a sample is a batch of {} tokens", o.tokens_per_batch) : "");
  }

  std::unique_ptr<Trainer> make_trainer(const ProcessGroup& world, OnSamples on_samples) override {
    auto arguments = args;
    const double smoothing = std::exchange(arguments.label_smoothing_factor, 0);  // compute_loss has it
    const auto texts = [this](const at::Tensor& outputs, const at::Tensor& samples) {
      return texts_of(outputs, samples);
    };
    TrainerOptions<models::Transformer> options{
        .train_dataset = train,
        .eval_dataset = validation,
        .compute_loss =
            [this, smoothing](auto& net, const Batch& batch) {
              const int64_t padding = tokenizers.special.padding;
              const at::Tensor& target = batch["target_ids"];
              const at::Tensor logits = net(models::TransformerBatch{batch["source_ids"], target});
              Loss loss = cross_entropy_sum(logits, batch["labels"].masked_select(target.ne(padding)),
                                            {.ignore_index = padding, .label_smoothing = smoothing});
              if (!c10::GradMode::is_enabled())
                loss.outputs = translations_of(net.module(), batch["source_ids"]);
              loss.labels = batch["sample"];
              return loss;
            },
        .metrics = {text::metric_of_texts(text::bleu(), texts),
                    text::metric_of_texts(text::char_error_rate(), texts),
                    text::metric_of_texts(text::word_error_rate(), texts)},
        .model_files =
            [this] {
              auto files = tokenizers.files();
              files["config.json"] = model->config().to_json();
              return files;
            },
        .on_samples = std::move(on_samples)};
    options.callbacks.push_back(
        std::make_shared<EpochReport>(o, validation_pairs, validation_ids, tokenizers, model, generator));
    return std::make_unique<Trainer>(model, arguments, world, std::move(options));
  }

  // Ids of the translations, filled up with -100.
  at::Tensor translations_of(const models::Transformer& net, const at::Tensor& source_ids) {
    constexpr int64_t nothing = -100;
    std::vector<std::vector<int64_t>> sources;
    for (const at::Tensor& row : source_ids.unbind(0)) {
      const at::Tensor ids = row.masked_select(row.ne(tokenizers.special.padding));
      sources.emplace_back(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.size(0));
    }
    auto generate = o.generate;
    generate.start_token_id = tokenizers.special.start;
    generate.eos_token_id = tokenizers.special.end;
    const auto result = generator->of(net).generate(sources, generate);
    std::vector<std::vector<int64_t>> ids;
    for (const auto& sentence : result.sentences) ids.push_back(sentence.ids);
    return models::pad_ids(ids, nothing);
  }

  text::Texts texts_of(const at::Tensor& outputs, const at::Tensor& samples) const {
    text::Texts texts;
    for (int64_t i = 0; i < samples.size(0); ++i) {
      const at::Tensor row = outputs[i].masked_select(outputs[i].ge(0));
      const auto* first = row.const_data_ptr<int64_t>();
      texts.first.push_back(text_of({first, first + row.size(0)}, tokenizers));
      texts.second.push_back(validation_pairs.pairs[static_cast<size_t>(samples[i].item<int64_t>())].target);
    }
    return texts;
  }
};

std::vector<std::string> lines_of(std::istream& stream) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.emplace_back(lines.empty() ? skip_byte_order_mark(line) : line);
  }
  return lines;
}

int translate_lines(tasks::Translator& translator, const tasks::TranslationOptions& o) {
  std::vector<std::string> lines;
  if (o.input == "-") {
    lines = lines_of(std::cin);
  } else {
    std::ifstream file(o.input);
    if (!file) throw FileError("cannot read " + o.input.string() + ": " + std::strerror(errno));
    lines = lines_of(file);
    if (file.bad())  // a directory
      throw FileError("cannot read " + o.input.string() + ": " + std::strerror(errno));
  }
  std::vector<std::string> translations;
  try {
    translations = translator.translate(lines, o.generate, o.translate_batch_size);
  } catch (const ValueError& error) {
    throw ValueError(
        fmt::format("{}: {}", o.input == "-" ? "standard input" : o.input.string(), error.what()));
  }
  for (const auto& line : translations) fmt::print("{}\n", line);
  if (std::fflush(stdout) != 0)
    throw FileError(fmt::format("cannot write the translations: {}", std::strerror(errno)));
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
      fmt::print("{}\n", translator.translate({sentence}, o.generate, 1)[0]);
    } catch (const ValueError& error) {
      fmt::print(stderr, "{}\n", error.what());
    }
    std::fflush(stdout);
  }
  if (terminal) fmt::print("\n");
  return 0;
}

int translate(tasks::TranslationOptions& o, const char* config, int argc, char** argv) {
  TrainingArguments args;
  if (config != nullptr) o.read_config(config, args);  // model_folder
  const auto add_flags = [&](CommandLine program) {
    o.add_training_flags(program);
    o.add_translation_flags(program);
    add_training_flags(program, args);
  };
  if (!parse_command_line("translate", "Translates with a trained model", add_flags, argc, argv)) return 0;
  if (o.interactive && !o.input.empty())
    throw ValueError("--interactive and --input exclude each other; give one");
  auto translator = tasks::Translator::from_directory(o.model_dir.empty() ? args.output_dir : o.model_dir);
  return o.interactive ? translate_by_hand(translator, o) : translate_lines(translator, o);
}

/// The value of `--flag VALUE` or `--flag=VALUE`, "" without one; nullptr where the flag is not given.
const char* given(int argc, char** argv, std::string flag) {
  for (int i = 1; i < argc; ++i) {
    std::string_view word = argv[i];
    const size_t equals = std::min(word.find('='), word.size());
    std::string name(word.substr(0, equals));
    std::replace(name.begin() + std::min<ptrdiff_t>(2, static_cast<ptrdiff_t>(name.size())), name.end(), '_',
                 '-');
    if (name != flag) continue;
    if (equals < word.size()) return argv[i] + equals + 1;
    return i + 1 < argc ? argv[i + 1] : "";
  }
  return nullptr;
}

int run(int argc, char** argv) {
  tasks::TranslationOptions options;
  // What the configuration says is a default for the flags, so it is read before them.
  const char* const config = given(argc, argv, "--config");
  const bool translates =
      given(argc, argv, "--interactive") != nullptr || given(argc, argv, "--input") != nullptr;
  if (translates) {
    skip_library_destructors();
    keep_freed_memory();
    return run_main("translate", [&] { return translate(options, config, argc, argv); });
  }
  Translate recipe(options);
  if (config != nullptr) {
    const int code = run_main("translate", [&] { return options.read_config(config, recipe.args), 0; });
    if (code != 0) return code;
  }
  options.batch_size_given = given(argc, argv, "--per-device-train-batch-size") != nullptr;
  if (options.batch_size_given && given(argc, argv, "--tokens-per-batch") == nullptr)
    options.tokens_per_batch = 0;
  return tasks::run_recipe("translate", "Trains a transformer to translate, and translates with it", recipe,
                           argc, argv);
}

}  // namespace

int main(int argc, char** argv) { return run(argc, argv); }
