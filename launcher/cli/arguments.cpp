#include "launcher/cli/arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::launcher {
namespace {

constexpr const char* kSeeHelp = "see lockrun --help";

[[noreturn]] void refuse_unknown(const std::string& word) {
  const std::string near = nearest_flag(word);
  throw ValueError(
      fmt::format("unknown flag {}{}", word,
                  (near.empty() ? std::string("; ") + kSeeHelp : "; did you mean --" + near + "?")));
}

std::string_view name_in(std::string_view word) { return word.substr(0, word.find('=')); }

bool is_flag(std::string_view word) {
  return word.size() > 2 && word.starts_with("--") && find_flag(name_in(word).substr(2)) != nullptr;
}

/// The flag of a word with one dash, and what of the word is its value ("-r3").
const Flag<Options>* find_short(std::string_view word, std::string_view& value) {
  const std::string_view letters = word.substr(1);
  for (const auto& flag : flags()) {
    if (flag.letters.empty() || !letters.starts_with(flag.letters)) continue;
    value = letters.substr(flag.letters.size());
    if (value.empty() || !is_switch(flag)) return &flag;
  }
  return nullptr;
}

/// Converts and throws the result away: a value that cannot work is found at its place.
void check_value(const Flag<Options>& flag, const std::string& source, const std::string& text) {
  Options ignored;
  set_flag(flag_target(flag.member, ignored), source, {text}, flag.check);
}

}  // namespace

void refuse_value(std::string_view source, std::string_view text, std::string_view expected) {
  throw ValueError(fmt::format("{}: expected {}", said_value(source, text), expected));
}

std::string read_given_file(const std::string& said, const std::string& path) {
  try {
    return read_file(path);
  } catch (const FileError& error) {
    throw FileError(fmt::format("{}: {}", said, error.what()));
  }
}

Arguments::Arguments(int argc, const char* const* argv) {
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  size_t at = 0;
  while (at < words.size() && words[at].size() > 1 && words[at].front() == '-') {
    if (words[at] == "--") {
      ++at;
      break;
    }
    at = take_flag(words, at);
  }
  command_.assign(words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
  take_environment();
}

size_t Arguments::take_flag(const std::vector<std::string>& words, size_t at) {
  const std::string& word = words[at];
  const size_t equals = word.find('=');
  std::string_view value;
  const Flag<Options>* flag = nullptr;
  bool has_value = false;
  std::string typed(name_in(word));
  if (word.starts_with("--")) {
    flag = find_flag(std::string_view(typed).substr(2));
    has_value = equals != word.npos;
    if (has_value) value = std::string_view(word).substr(equals + 1);
  } else {
    flag = find_short(word, value);
    has_value = !value.empty();
    if (value.starts_with('=')) value.remove_prefix(1);
    if (flag != nullptr) typed = "-" + std::string(flag->letters);
  }
  if (flag == nullptr) refuse_unknown(word);
  Said& said = said_[FlagName(*flag).index()];
  said.name = typed;
  if (is_switch(*flag)) {
    if (has_value) throw ValueError(fmt::format("flag {} takes no value ({})", typed, word));
    said.text = "1";
    return at + 1;
  }
  if (!has_value) {
    if (at + 1 == words.size() || is_flag(words[at + 1])) {
      throw ValueError(fmt::format("flag {} needs a value ({})", typed, kSeeHelp));
    }
    value = words[++at];
  }
  said.text = std::string(value);
  check_value(*flag, typed, *said.text);
  return at + 1;
}

void Arguments::take_environment() {
  for (const auto& flag : flags()) {
    Said& said = said_[FlagName(flag).index()];
    if (said.text) continue;
    for (const std::string& variable : {environment_name(flag), std::string(flag.variable)}) {
      if (variable.empty() || said.text) continue;
      if (is_switch(flag)) {
        if (env::get_bool(variable).value_or(false)) said.text = "1";
      } else {
        said.text = env::get(variable);
      }
      if (said.text) said.variable = variable;
    }
    if (said.text && !is_switch(flag)) check_value(flag, source(FlagName(flag)), *said.text);
  }
}

void Arguments::fill(Options& options) const {
  for (const auto& flag : flags()) {
    const FlagName name(flag);
    if (!given(name) && flag.preset.empty()) continue;
    set_flag(flag_target(flag.member, options), source(name), {text(name)}, flag.check);
  }
}

std::string Arguments::text(FlagName flag) const {
  return said_[flag.index()].text.value_or(std::string(flag.row().preset));
}

std::string Arguments::source(FlagName flag) const {
  const Said& said = said_[flag.index()];
  if (!said.name.empty()) return said.name;
  if (!said.variable.empty()) return fmt::format("environment variable {}=", said.variable);
  return fmt::format("--{}", flag.row().name);
}

std::vector<GivenFlag> Arguments::all_given() const {
  std::vector<GivenFlag> given_flags;
  for (const auto& row : flags()) {
    const FlagName flag(row);
    if (given(flag)) given_flags.push_back({fmt::format("--{}", row.name), source(flag), text(flag)});
  }
  return given_flags;
}

std::string Arguments::name(FlagName flag) const {
  std::string name = source(flag);
  if (name.ends_with('=')) name.pop_back();
  return name;
}

}  // namespace lockstep::launcher
