#include "lockstep/trainer/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/base/shell.h"
#include "lockstep/trainer/arguments/training_arguments_table.h"

namespace lockstep {
namespace {

/// --like-this
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

/// An option whose text `parse(flag, text)` turns into `value`; `flag` as it was typed.
template <class T, class Parse>
CommandOption add_parsed(CommandLine program, const ArgumentRow& row, T& value, Parse parse,
                         const std::string& preset) {
  CommandOption option = program.add_option(
      flag_of(row.name),
      [&value, parse](const std::string& typed, const std::string& text) { value = parse(typed, text); },
      row.help);
  if (row.preset_text == nullptr) option.default_text(preset);
  return option;
}

CommandOption add_option(CommandLine program, const ArgumentRow& row, IntervalStrategy& value) {
  return add_parsed(program, row, value, parse_interval_strategy, name_of(value));
}

CommandOption add_option(CommandLine program, const ArgumentRow& row, SaveStrategy& value) {
  return add_parsed(program, row, value, parse_save_strategy, name_of(value));
}

CommandOption add_option(CommandLine program, const ArgumentRow& row, TrainSamplingStrategy& value) {
  return add_parsed(program, row, value, parse_train_sampling_strategy, name_of(value));
}

CommandOption add_option(CommandLine program, const ArgumentRow& row, std::chrono::seconds& value) {
  return add_parsed(program, row, value, parse_seconds, std::to_string(value.count()));
}

CommandOption add_option(CommandLine program, const ArgumentRow& row, std::optional<bool>& value) {
  return add_parsed(program, row, value, parse_bool, value && *value ? "true" : "false");
}

/// Adds the option of a number or a text.
template <class T>
CommandOption add_option(CommandLine program, const ArgumentRow& row, T& value) {
  CommandOption option = program.add_option(flag_of(row.name), value, row.help);
  if (row.preset_text == nullptr) option.with_default();
  return option;
}

template <class T>
CommandOption add(CommandLine program, const ArgumentRow& row, T& value) {
  CommandOption option = add_option(program, row, value);
  if (*row.word != '\0') option.type_name(row.word);
  option.show_choices(row.choices);
  if (row.preset_text != nullptr && *row.preset_text != '\0') option.default_text(row.preset_text);
  return option;
}

/// An argument as above. A resume takes the checkpoint's seeds, unless their flags are given.
template <class T>
void add(CommandLine program, const ArgumentRow& row, T& value, TrainingArguments& arguments) {
  CommandOption option = add(program, row, value);
  const std::string name = row.name;
  if (name != "seed" && name != "data_seed") return;
  arguments.not_given.insert(name);
  option.on_given([&arguments, name] { arguments.not_given.erase(name); });
}

/// What is off is turned on by the flag alone; what is on needs a word to turn it off.
void add(CommandLine program, const ArgumentRow& row, bool& value, TrainingArguments& /*arguments*/) {
  if (value) {
    CommandOption option = add_parsed(program, row, value, parse_bool, "true");
    option.type_name("BOOL").show_choices({"true", "false"});
  } else {
    program.add_flag(flag_of(row.name), value, row.help);
  }
}

}  // namespace

void add_training_flags(CommandLine program, TrainingArguments& arguments) {
  const ArgumentRow* row = training_argument_rows().data();
#define LOCKSTEP_ARGUMENT_GROUP(title) program.begin_group(title);
#define LOCKSTEP_ARGUMENT(type, name, preset, preset_text, ok, expected, word, help) \
  add(program, *row++, arguments.name, arguments);
#include "lockstep/trainer/training_arguments.inc"
  for (const auto& [other, name] : other_training_argument_names()) {
    program.add_other_name(flag_of(other), flag_of(name));
  }
  for (const auto& refused : refused_training_arguments()) {
    program.add_refused_flag(flag_of(refused.name), refused.reason);
  }
}

}  // namespace lockstep
