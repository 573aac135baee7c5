#include "lockstep/trainer/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/base/shell.h"
#include "lockstep/trainer/arguments/training_arguments_table.h"

namespace lockstep {
namespace {

std::string flag_of(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

std::chrono::seconds parse_seconds(const std::string& flag, const std::string& text) {
  int64_t seconds = 0;
  const char* const end = text.data() + text.size();
  if (std::from_chars(text.data(), end, seconds).ptr != end || text.empty()) {
    throw ValueError(
        fmt::format("{} is {}; it must be a whole number of seconds", flag, quoted_if_empty(text)));
  }
  return std::chrono::seconds(seconds);
}

/// What takes the text of a flag whose field no row has a member for; `flag` as it was typed.
void read(const std::string& flag, const std::string& text, IntervalStrategy& value) {
  value = parse_interval_strategy(flag, text);
}
void read(const std::string& flag, const std::string& text, SaveStrategy& value) {
  value = parse_save_strategy(flag, text);
}
void read(const std::string& flag, const std::string& text, TrainSamplingStrategy& value) {
  value = parse_train_sampling_strategy(flag, text);
}
void read(const std::string& flag, const std::string& text, std::chrono::seconds& value) {
  value = parse_seconds(flag, text);
}
void read(const std::string& flag, const std::string& text, std::optional<bool>& value) {
  value = parse_bool(flag, text);
}
void read(const std::string& flag, const std::string& text, bool& value) { value = parse_bool(flag, text); }

template <auto kField>
void take(TrainingArguments& arguments, const std::string& flag, const std::string& text) {
  read(flag, text, arguments.*kField);
}

/// Such a value, as --help shows it.
std::string shown(std::chrono::seconds value) { return std::to_string(value.count()); }
std::string shown(std::optional<bool> value) { return value.value_or(false) ? "true" : "false"; }
template <class Strategy>
std::string shown(Strategy value) {
  return name_of(value);
}

/// The names of the seeds, of which TrainingArguments::not_given tells; none for the other fields.
template <auto kField>
constexpr const char* kSeedName = nullptr;
template <>
constexpr const char* kSeedName<&TrainingArguments::seed> = "seed";
template <>
constexpr const char* kSeedName<&TrainingArguments::data_seed> = "data_seed";

/// Adds the flag that sets a field. Its default is what the program has set before.
template <auto kField>
void add(CommandLine program, const ArgumentRow& row, TrainingArguments& arguments) {
  auto& value = arguments.*kField;
  using Value = std::remove_cvref_t<decltype(value)>;
  constexpr bool kIsTruth = std::is_same_v<Value, bool> || std::is_same_v<Value, std::optional<bool>>;
  Flag<TrainingArguments> flag{.name = row.flag, .value = row.word, .words = row.help};
  std::string value_now;
  if constexpr (FlagType<Value>) {
    flag.member = kField;
    flag.preset = kHeldValue;
  } else {
    flag.target = taken_by<take<kField>>;
    value_now = shown(value);
  }
  if constexpr (std::is_same_v<Value, bool>) {
    // What is off is turned on by the flag alone; what is on needs a word to turn it off.
    if (value) {
      flag.target = taken_by<take<kField>>;
      value_now = "true";
    }
  }
  if constexpr (std::is_same_v<Value, std::string>)
    flag.check.may_be_empty = (TrainingArguments().*kField).empty();
  if (!kIsTruth) {
    flag.check.choices = row.choices;
  } else if (flag.target != nullptr) {
    flag.value = "true|false";  // for which there are other words
  }
  if (row.preset_text != nullptr) {
    flag.preset = {};
    flag.default_words = row.preset_text;
  } else {
    flag.default_words = value_now;
  }
  // A resume takes the checkpoint's seeds, unless their flags are given.
  if constexpr (kSeedName<kField> != nullptr) {
    arguments.not_given.insert(kSeedName<kField>);
    flag.on_given = [](TrainingArguments& given) { given.not_given.erase(kSeedName<kField>); };
  }
  program.add_table<TrainingArguments>(std::span(&flag, 1), arguments);
}

}  // namespace

void add_training_flags(CommandLine program, TrainingArguments& arguments) {
  const ArgumentRow* row = training_argument_rows().data();
#define LOCKSTEP_ARGUMENT_GROUP(title) program.begin_group(title);
#define LOCKSTEP_ARGUMENT(type, name, preset, preset_text, ok, expected, word, help) \
  add<&TrainingArguments::name>(program, *row++, arguments);
#include "lockstep/trainer/training_arguments.inc"
  for (const auto& [other, name] : other_training_argument_names()) {
    program.add_other_name(flag_of(other), flag_of(name));
  }
  for (const auto& refused : refused_training_arguments()) {
    program.add_refused_flag(flag_of(refused.name), refused.reason);
  }
}

}  // namespace lockstep
