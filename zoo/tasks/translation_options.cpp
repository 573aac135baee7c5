#include "lockstep/zoo/tasks/translation_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/zoo/tasks/flag_errors.h"

namespace lockstep::tasks {
namespace {

constexpr int64_t kSentencesPerBatch = 4;
const std::vector<std::string> kOverlong{"skip", "cut", "error"};  // by enumerator

std::optional<int64_t> parse_number(const std::string& text) {
  int64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || end != last || value < 0) return std::nullopt;
  return value;
}

// "tmodel_{0:02d}.pt" -> "tmodel_"
std::string basename_of(const std::string& pattern) {
  std::string name = pattern.substr(0, pattern.find('{'));
  if (name.empty() || name.find('/') != std::string::npos)
    throw ValueError(fmt::format("model_basename is '{}'; expected a name such as tmodel_", pattern));
  return name;
}

/// Epochs that have a checkpoint of their own, with its path.
std::map<int64_t, std::filesystem::path> epochs_in(const std::filesystem::path& folder,
                                                   const std::string& basename) {
  std::map<int64_t, std::filesystem::path> epochs;
  if (!std::filesystem::is_directory(folder)) return epochs;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(basename)) continue;
    const auto epoch = parse_number(name.substr(basename.size()));
    if (epoch && std::filesystem::is_directory(entry.path())) epochs[*epoch] = entry.path();
  }
  return epochs;
}

}  // namespace

TranslationOptions::TranslationOptions() {
  generate.num_beams = 1;
  generate.max_new_tokens = 0;
}

namespace {

using checkpoint::RecordKind;

constexpr auto kOtherPairs = OnResume::refuses(RecordKind::data, "if sentences differ; the path may change");
constexpr auto kOtherValidation =
    OnResume::refuses(RecordKind::data, "if sentences differ; you may add it or leave it out");

template <auto kMember>
constexpr auto kModel = member_of<&TranslationOptions::model, kMember, TranslationOptions>;
template <auto kMember>
constexpr auto kGenerate = member_of<&TranslationOptions::generate, kMember, TranslationOptions>;

/// The configuration is read before the flags, whose defaults it sets.
void ignore_text(TranslationOptions&, const std::string&, const std::string&) {}

constexpr auto kTranslationTrainingFlags = std::to_array<RecipeFlag<TranslationOptions>>({
    {{.name = "config",
      .target = taken_by<ignore_text>,
      .value = "FILE",
      .words = "JSON file with keys of the original program (batch_size, lr, seq_len, ...); flags win"},
     OnResume::takes_new("sets defaults of the other flags")},
    {{.name = "data-dir",
      .member = &TranslationOptions::data_dir,
      .value = "DIR",
      .words = "Directory with train.<language> and, if there are, validation.<language>"},
     kOtherPairs},
    {{.name = "lang-src",
      .member = &TranslationOptions::lang_src,
      .preset = kHeldValue,
      .value = "LANGUAGE",
      .words = "Language to translate from"},
     OnResume::refuses()},
    {{.name = "lang-tgt",
      .member = &TranslationOptions::lang_tgt,
      .preset = kHeldValue,
      .value = "LANGUAGE",
      .words = "Language to translate into"},
     OnResume::refuses()},
    {{.name = "source-file",
      .member = &TranslationOptions::source_file,
      .words = "Sentences to train on, one a line"},
     kOtherPairs},
    {{.name = "target-file",
      .member = &TranslationOptions::target_file,
      .words = "Their translations, line by line"},
     kOtherPairs},
    {{.name = "validation-source-file",
      .member = &TranslationOptions::validation_source_file,
      .words = "Sentences to validate on"},
     kOtherValidation},
    {{.name = "validation-target-file",
      .member = &TranslationOptions::validation_target_file,
      .words = "Their translations"},
     kOtherValidation},
    {{.name = "validation-split",
      .member = &TranslationOptions::validation_split,
      .preset = kHeldValue,
      .words = "Without validation files: this share of the pairs, chosen by --seed"},
     OnResume::refuses(RecordKind::data, "if it changes the training pairs")},
    {{.name = "drop-overlong",
      .member = &TranslationOptions::drop_overlong,
      .words = "Leave out and count pairs that are longer than --seq-len, in place of an error"},
     OnResume::refuses()},
    {{.name = "tokens-per-batch",
      .member = &TranslationOptions::tokens_per_batch,
      .preset = kHeldValue,
      .check = FlagCheck::at_least(0),
      .words = "Tokens per rank and micro-batch, padding included; 0: --per-device-train-batch-size pairs"},
     OnResume::refuses()},
    {{.name = "tokenizer-dir",
      .member = &TranslationOptions::tokenizer_dir,
      .default_words = "trained on the training set",
      .value = "DIR",
      .group = "Tokenizers",
      .words = "Directory with tokenizer_<language>.json of both languages"},
     OnResume::refuses(RecordKind::model,
                       "if a tokenizer differs; without the flag the checkpoint's are kept")},
    {{.name = "vocab-size",
      .member = &TranslationOptions::vocab_size,
      .preset = kHeldValue,
      .group = "Tokenizers",
      .words = "Most words per language"},
     OnResume::refuses()},
    {{.name = "min-frequency",
      .member = &TranslationOptions::min_frequency,
      .preset = kHeldValue,
      .group = "Tokenizers",
      .words = "Rarer words are unknown"},
     OnResume::refuses()},
    {{.name = "seq-len",
      .target = kModel<&models::TransformerConfig::seq_len>,
      .preset = kHeldValue,
      .group = "Model",
      .words = "Positions: the longest sentence and its start and end"},
     OnResume::refuses(RecordKind::model, "")},
    {{.name = "d-model",
      .target = kModel<&models::TransformerConfig::d_model>,
      .preset = kHeldValue,
      .group = "Model",
      .words = "Width"},
     OnResume::refuses(RecordKind::model, "")},
    {{.name = "num-layers",
      .target = kModel<&models::TransformerConfig::num_layers>,
      .preset = kHeldValue,
      .group = "Model",
      .words = "Layers of the encoder, and of the decoder"},
     OnResume::refuses(RecordKind::model, "")},
    {{.name = "num-heads",
      .target = kModel<&models::TransformerConfig::num_heads>,
      .preset = kHeldValue,
      .group = "Model",
      .words = "Heads of an attention"},
     OnResume::refuses(RecordKind::model, "")},
    {{.name = "d-ff",
      .target = kModel<&models::TransformerConfig::d_ff>,
      .preset = kHeldValue,
      .group = "Model",
      .words = "Inner width of the feed-forward blocks"},
     OnResume::refuses(RecordKind::model, "")},
    {{.name = "dropout",
      .target = kModel<&models::TransformerConfig::dropout>,
      .preset = kHeldValue,
      .group = "Model",
      .words = "Probability of dropout"},
     OnResume::refuses(RecordKind::model, "")},
    {{.name = "preload",
      .member = &TranslationOptions::preload,
      .value = "WHICH",
      .group = "Model",
      .words = "Continue from tmodel_N in --output-dir, or from the latest: N or latest"},
     OnResume::takes_new()},
    {{.name = "validation-examples",
      .member = &TranslationOptions::validation_examples,
      .preset = kHeldValue,
      .check = FlagCheck::at_least(0),
      .group = "Model",
      .words = "Translations to print after an evaluation"},
     OnResume::takes_new()},
});

constexpr auto kTranslationFlags = std::to_array<RecipeFlag<TranslationOptions>>({
    {{.name = "interactive",
      .member = &TranslationOptions::interactive,
      .words = "Translate lines that you type"},
     OnResume::takes_new("translates, and trains nothing")},
    {{.name = "input",
      .member = &TranslationOptions::input,
      .words = "Translate the lines of this file; - is standard input"},
     OnResume::takes_new("translates, and trains nothing")},
    {{.name = "model-dir",
      .member = &TranslationOptions::model_dir,
      .default_words = "--output-dir",
      .value = "DIR",
      .words = "What a training has saved"},
     OnResume::takes_new()},
    {{.name = "num-beams",
      .target = kGenerate<&models::GenerateOptions::num_beams>,
      .preset = kHeldValue,
      .words = "Beams; 1: greedy. Also for validation"},
     OnResume::takes_new()},
    {{.name = "length-penalty",
      .target = kGenerate<&models::GenerateOptions::length_penalty>,
      .preset = kHeldValue,
      .words = "Beams compare by score / length^X"},
     OnResume::takes_new()},
    {{.name = "max-new-tokens",
      .target = kGenerate<&models::GenerateOptions::max_new_tokens>,
      .preset = kHeldValue,
      .check = FlagCheck::at_least(0),
      .words = "Longest translation, its end included; 0: by the sentence"},
     OnResume::takes_new()},
    {{.name = "translate-batch-size",
      .member = &TranslationOptions::translate_batch_size,
      .preset = kHeldValue,
      .words = "Sentences at a time"},
     OnResume::takes_new()},
    {{.name = "overlong",
      .member = &TranslationOptions::overlong,
      .preset = kHeldValue,
      .check = FlagCheck::one_of("skip cut error"),
      .words = "Lines that are longer than the model takes: skip (an empty line), cut, or error for all"},
     OnResume::takes_new()},
});

using TranslationErrors = FlagErrors<kTranslationTrainingFlags, kTranslationFlags, kTrainingFlags>;
static_assert(TranslationErrors::has_all(kNamedTranslationFlags));

}  // namespace

void TranslationOptions::add_training_flags(RecipeFlags& flags) {
  flags.begin_group("Data");
  flags.add_table<TranslationOptions>(kTranslationTrainingFlags, *this);
}

void TranslationOptions::add_translation_flags(RecipeFlags& flags) {
  flags.begin_group("Translate with a trained model");
  flags.add_table<TranslationOptions>(kTranslationFlags, *this);
}

void TranslationOptions::read_config(const std::filesystem::path& path, TrainingArguments& args) {
  const auto json = parse_json(read_file(path));
  if (!json.is_object()) throw FileError(fmt::format("{} is no JSON object", path.string()));
  std::string key;
  const auto refuse = [&](const std::string& expected) {
    throw FileError(fmt::format("{}: {} is {}; expected {}", path.string(), key, json[key].dump(), expected));
  };
  using Value = nlohmann::json;
  const auto text = [&](std::string& to) {
    return [&](const Value& v) { v.is_string() ? void(to = v.get<std::string>()) : refuse("a text"); };
  };
  const auto file = [&](std::filesystem::path& to) {
    return [&](const Value& v) { v.is_string() ? void(to = v.get<std::string>()) : refuse("a path"); };
  };
  const auto whole = [&](int64_t& to) {
    return [&](const Value& v) {
      v.is_number_integer() ? void(to = v.get<int64_t>()) : refuse("a whole number");
    };
  };
  const auto number = [&](double& to) {
    return [&](const Value& v) { v.is_number() ? void(to = v.get<double>()) : refuse("a number"); };
  };
  const auto nothing = [](const Value&) {};
  std::map<std::string, std::function<void(const Value&)>> keys = {
      {"batch_size",
       [&](const Value& v) {
         whole(args.per_device_train_batch_size)(v);
         tokens_per_batch = 0;
       }},
      {"num_epochs", number(args.num_train_epochs)},
      {"lr", number(args.learning_rate)},
      {"seq_len", whole(model.seq_len)},
      {"d_model", whole(model.d_model)},
      {"num_layers", whole(model.num_layers)},
      {"num_heads", whole(model.num_heads)},
      {"d_ff", whole(model.d_ff)},
      {"dropout", number(model.dropout)},
      {"lang_src", text(lang_src)},
      {"lang_tgt", text(lang_tgt)},
      {"source_file", file(source_file)},
      {"target_file", file(target_file)},
      {"validation_source_file", file(validation_source_file)},
      {"validation_target_file", file(validation_target_file)},
      {"data_dir", file(data_dir)},
      {"model_folder", file(args.output_dir)},
      {"tokens_per_batch", whole(tokens_per_batch)},
      {"model_basename",
       [&](const Value& v) {
         v.is_string() ? void(model_basename = basename_of(v.get<std::string>())) : refuse("a text");
       }},
      {"preload",
       [&](const Value& v) {
         if (v.is_number_integer()) {
           preload = std::to_string(v.get<int64_t>());
         } else if (v.is_string()) {
           preload = v.get<std::string>();
         } else if (!v.is_null()) {
           refuse("latest, the number of an epoch, or null");
         }
       }},
      {"tokenizer_file",
       [&](const Value& v) {
         if (v != "tokenizer_{0}.json")
           refuse("\"tokenizer_{0}.json\"; --tokenizer-dir names their directory");
       }},
      // What the launcher knows.
      {"local_rank", nothing},
      {"global_rank", nothing}};
  for (const auto& [name, value] : json.items()) {
    key = name;
    const auto found = keys.find(name);
    if (found == keys.end()) {
      std::vector<std::string> known;
      for (const auto& entry : keys) known.push_back(entry.first);
      throw FileError(
          fmt::format("{}: unknown key {}; there are {}", path.string(), name, fmt::join(known, ", ")));
    }
    found->second(value);
  }
}

void TranslationOptions::check(TrainingArguments& args) {
  if (!data_dir.empty()) {
    const auto fill = [&](std::filesystem::path& file, const std::string& name) {
      if (file.empty()) file = data_dir / name;
    };
    fill(source_file, "train." + lang_src);
    fill(target_file, "train." + lang_tgt);
    if (std::filesystem::exists(data_dir / ("validation." + lang_src))) {
      fill(validation_source_file, "validation." + lang_src);
      fill(validation_target_file, "validation." + lang_tgt);
    }
  }
  if (source_file.empty() || target_file.empty()) {
    TranslationErrors::refuse(
        "no data: give --data-dir DIR, or --source-file and --target-file; to translate, --interactive or --input FILE");
  }
  if (validation_source_file.empty() != validation_target_file.empty())
    TranslationErrors::refuse(
        "--validation-source-file and --validation-target-file belong together; give both");
  if (lang_src == lang_tgt)
    TranslationErrors::refuse("--lang-src and --lang-tgt are both {}; the tokenizers are named after them",
                              lang_src);
  if (!preload.empty() && preload != "latest" && !parse_number(preload))
    TranslationErrors::refuse("--preload is {}; expected latest or the number of an epoch", preload);
  if (!preload.empty() && !args.resume_from_checkpoint.empty())
    TranslationErrors::refuse("--preload and --resume-from-checkpoint exclude each other; give one");
  if (tokens_per_batch > 0 && batch_size_given)
    TranslationErrors::refuse(
        "--tokens-per-batch and --per-device-train-batch-size exclude each other; give one");
  if (tokens_per_batch > 0) args.per_device_train_batch_size = 1;  // a sample is a whole batch
  // Positions are the same everywhere; logical ranks want the buffers of the first one all the same.
  if (args.deterministic_world == 0) args.ddp_broadcast_buffers = false;
  auto sizes = model;
  sizes.source_vocab_size = sizes.target_vocab_size = 4;  // not known yet
  sizes.check();
}

TranslateOptions TranslationOptions::translate_options() const {
  const auto found = std::find(kOverlong.begin(), kOverlong.end(), overlong);
  return {.generate = generate,
          .batch_size = translate_batch_size,
          .overlong = static_cast<Overlong>(found - kOverlong.begin())};
}

void set_translation_defaults(TrainingArguments& args) {
  args.num_train_epochs = 30;
  args.per_device_train_batch_size = kSentencesPerBatch;
  args.per_device_eval_batch_size = 32;
  args.learning_rate = 1e-4;
  args.lr_scheduler_type = "constant";
  args.adam_epsilon = 1e-9;
  args.label_smoothing_factor = 0.1;
  args.max_grad_norm = 0;
  args.save_strategy = SaveStrategy::EPOCH;
  args.eval_strategy = IntervalStrategy::EPOCH;
}

std::string epoch_name(const std::string& basename, int64_t epoch) {
  return fmt::format("{}{:02}", basename, epoch);
}

std::filesystem::path find_preload(const std::filesystem::path& folder, const std::string& basename,
                                   const std::string& preload) {
  if (preload.empty()) return {};
  const auto epochs = epochs_in(folder, basename);
  if (preload == "latest") {
    return epochs.empty() ? std::filesystem::path() : std::filesystem::canonical(epochs.rbegin()->second);
  }
  const auto found = epochs.find(parse_number(preload).value_or(-1));
  if (found != epochs.end()) return std::filesystem::canonical(found->second);
  std::vector<std::string> names;
  for (const auto& [epoch, path] : epochs) names.push_back(path.filename().string());
  TranslationErrors::refuse("--preload {}: {} has no {}; {}", preload, folder.string(),
                            epoch_name(basename, parse_number(preload).value_or(0)),
                            names.empty() ? "it has no checkpoint of an epoch"
                                          : fmt::format("there are {}", fmt::join(names, ", ")));
}

}  // namespace lockstep::tasks
