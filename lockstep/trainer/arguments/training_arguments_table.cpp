#include "lockstep/trainer/arguments/training_arguments_table.h"

#include <algorithm>
#include <array>
#include <vector>

#include "lockstep/cli/nearest.h"

namespace lockstep {
namespace {

constexpr const char* SHOWN = nullptr;  // as the table calls it

std::string replaced(std::string text, char old, char by) {
  std::replace(text.begin(), text.end(), old, by);
  return text;
}

std::vector<ArgumentRow> make_rows() {
  std::vector<ArgumentRow> rows;
  const char* group = nullptr;  // the table begins with one
#define LOCKSTEP_ARGUMENT_GROUP(title) group = title;
#define LOCKSTEP_ARGUMENT(type, name, preset, preset_text, ok, expected, word, help)                 \
  rows.push_back({#name, replaced(#name, '_', '-'), group, preset_text, describe_expected(expected), \
                  choices_in(expected).empty() ? "" : replaced(expected, '|', ' '), word, help});
#include "lockstep/trainer/training_arguments.inc"
  return rows;
}

constexpr RefusedArgument kRefused[] = {
#define LOCKSTEP_REFUSED(name, harmless, reason) {#name, harmless, reason},
#include "lockstep/trainer/training_arguments.inc"
};

constexpr DifferentDefault kDifferent[] = {
#define LOCKSTEP_DIFFERENT_DEFAULT(name, theirs, reason) {#name, theirs, reason},
#include "lockstep/trainer/training_arguments.inc"
};

constexpr OtherArgumentName kOtherNames[] = {
#define LOCKSTEP_OTHER_NAME(other, name) {#other, #name},
#include "lockstep/trainer/training_arguments.inc"
};

constexpr ResumeRow kResumeRows[] = {
#define LOCKSTEP_ON_RESUME(name, effect, note) {#name, ResumeEffect::effect, note},
#include "lockstep/trainer/training_arguments.inc"
};

}  // namespace

std::vector<std::string> choices_in(std::string_view expected) {
  std::vector<std::string> choices;
  if (expected.find('|') == expected.npos) return choices;
  while (true) {
    const size_t end = expected.find('|');
    choices.emplace_back(expected.substr(0, end));
    if (end == expected.npos) return choices;
    expected.remove_prefix(end + 1);
  }
}

std::string describe_expected(std::string_view expected) {
  const auto choices = choices_in(expected);
  return choices.empty() ? std::string(expected) : one_of(choices);
}

std::span<const ArgumentRow> training_argument_rows() {
  static const std::vector<ArgumentRow> rows = make_rows();
  return rows;
}

std::span<const RefusedArgument> refused_training_arguments() { return kRefused; }
std::span<const DifferentDefault> different_training_defaults() { return kDifferent; }
std::span<const OtherArgumentName> other_training_argument_names() { return kOtherNames; }
std::span<const ResumeRow> training_resume_rows() { return kResumeRows; }

std::string nearest_training_argument(std::string_view name) {
  for (const auto& [other, its_name] : kOtherNames) {
    if (name == other) return its_name;
  }
  std::vector<std::string> words;
  for (const auto& row : training_argument_rows()) words.emplace_back(row.name);
  for (const auto& refused : kRefused) words.emplace_back(refused.name);
  for (auto& word : words) word = replaced(word, '_', '-');  // as nearest_word wants them
  return replaced(nearest_word(name, words), '-', '_');
}

}  // namespace lockstep
