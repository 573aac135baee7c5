#include "launcher/cli/arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "launcher/cli/flags.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

constexpr const char* kSeeHelp = "see lockrun --help";

[[noreturn]] void refuse_unknown(const std::string& word) {
  const std::string near = nearest_flag(word);
  throw ValueError(
      fmt::format("unknown flag {}{}", word,
                  (near.empty() ? std::string("; ") + kSeeHelp : "; did you mean --" + near + "?")));
}

bool is_flag(std::string_view word) {
  return word.size() > 2 && word.starts_with("--") &&
         find_flag(word.substr(2, word.find('=') == word.npos ? word.npos : word.find('=') - 2)) != nullptr;
}

/// The flag of a word with one dash, and what of the word is its value ("-r3").
const Flag* find_short(std::string_view word, std::string_view& value) {
  const std::string_view letters = word.substr(1);
  for (const Flag& flag : flags()) {
    if (flag.letters.empty() || !letters.starts_with(flag.letters)) continue;
    value = letters.substr(flag.letters.size());
    if (value.empty() || !flag.value.empty()) return &flag;
  }
  return nullptr;
}

void check_choice(const Flag& flag, const std::string& text) {
  if (flag.choices.empty()) return;
  const std::string choices(flag.choices);
  if (!text.empty() && (" " + choices + " ").find(" " + text + " ") != std::string::npos) return;
  std::string list = choices;
  for (size_t at = list.rfind(' '), last = at; at != std::string::npos; at = list.rfind(' ', at - 1)) {
    list.replace(at, 1, at == last ? " or " : ", ");
  }
  throw ValueError(fmt::format("--{} {}: expected {}", flag.name, text, list));
}

}  // namespace

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
  const Flag* flag = nullptr;
  bool has_value = false;
  if (word.starts_with("--")) {
    flag = find_flag(std::string_view(word).substr(2, equals == word.npos ? word.npos : equals - 2));
    has_value = equals != word.npos;
    if (has_value) value = std::string_view(word).substr(equals + 1);
  } else {
    flag = find_short(word, value);
    has_value = !value.empty();
    if (value.starts_with('=')) value.remove_prefix(1);
  }
  if (flag == nullptr) refuse_unknown(word);
  typed_[std::string(flag->name)] = true;
  if (flag->value.empty()) {
    if (has_value) throw ValueError(fmt::format("flag --{} takes no value ({})", flag->name, word));
    take(flag->name, "1");
    return at + 1;
  }
  if (!has_value) {
    if (at + 1 == words.size() || is_flag(words[at + 1])) {
      throw ValueError(fmt::format("flag --{} needs a value ({})", flag->name, kSeeHelp));
    }
    value = words[++at];
  }
  check_choice(*flag, std::string(value));
  take(flag->name, std::string(value));
  return at + 1;
}

void Arguments::take(std::string_view flag, std::string text) { texts_[std::string(flag)] = std::move(text); }

void Arguments::take_environment() {
  for (const Flag& flag : flags()) {
    if (given(flag.name)) continue;
    const std::string variable = environment_name(flag);
    if (!flag.value.empty()) {
      if (const auto text = env::get(variable)) {
        check_choice(flag, *text);
        take(flag.name, *text);
      }
    } else if (env::get_bool(variable).value_or(false)) {
      take(flag.name, "1");
    }
  }
}

std::string Arguments::text(std::string_view flag) const {
  const auto found = texts_.find(std::string(flag));
  return found != texts_.end() ? found->second : std::string(find_flag(flag)->preset);
}

}  // namespace lockstep::launcher
