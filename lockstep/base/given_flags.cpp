#include "lockstep/base/given_flags.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <utility>

namespace lockstep {
namespace {

/// Never destroyed: errors may be printed while the process exits.
std::vector<GivenFlag>& remembered_flags() {
  static auto* const flags = new std::vector<GivenFlag>;
  return *flags;
}

bool is_in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-'; }

/// Whether no longer word or path begins in front of `at`.
bool begins_at(std::string_view text, size_t at) {
  constexpr std::string_view kPartOfMore = "./\"'`";
  return at == 0 || (!is_in_name(text[at - 1]) && kPartOfMore.find(text[at - 1]) == kPartOfMore.npos);
}

/// Whether no longer word or path goes on at `at`.
bool ends_at(std::string_view text, size_t at) {
  if (at >= text.size()) return true;
  const bool is_path =
      (text[at] == '.' || text[at] == '/') && at + 1 < text.size() && is_in_name(text[at + 1]);
  return !is_in_name(text[at]) && !is_path;
}

/// What takes the place of a word, by what follows it.
struct Replacement {
  size_t more = 0;  ///< characters behind the word that are replaced, too
  std::string by{};
};

std::string replace_words(std::string text, std::string_view word,
                          const std::function<Replacement(std::string_view)>& find_replacement) {
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at)) {
    const size_t end = at + word.size();
    if (!begins_at(text, at) || !ends_at(text, end)) {
      at = end;
      continue;
    }
    const auto [more, by] = find_replacement(std::string_view(text).substr(end));
    text.replace(at, word.size() + more, by);
    at += by.size();
  }
  return text;
}

/// Whether `text` begins with `word` and does not go on with more of a name.
bool begins_with_word(std::string_view text, std::string_view word) {
  return !word.empty() && text.starts_with(word) &&
         (text.size() == word.size() || !is_in_name(text[word.size()]));
}

/// Whether `rest`, the text behind a flag, goes on with the flag's value or with a part of it that stands between commas.
bool begins_with_value(std::string_view rest, std::string_view value) {
  if (!rest.starts_with(' ')) return false;
  rest.remove_prefix(1);
  if (begins_with_word(rest, value)) return true;
  while (!value.empty()) {
    const size_t end = std::min(value.find(','), value.size());
    if (begins_with_word(rest, value.substr(0, end))) return true;
    value.remove_prefix(std::min(end + 1, value.size()));
  }
  return false;
}

bool begins_with_argument(std::string_view text, const std::string& argument) {
  if (!text.starts_with(argument)) return false;
  text.remove_prefix(argument.size());
  // A word like "seed" may stand for itself.
  const bool is_word = argument.find('_') == argument.npos;
  return text.starts_with(" is ") || (!is_word && (text.starts_with(' ') || text.starts_with(':')));
}

}  // namespace

std::string argument_of(std::string_view flag) {
  std::string name(flag.substr(std::min(flag.find_first_not_of('-'), flag.size())));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string replace_word(std::string text, std::string_view word, std::string_view by) {
  return replace_words(std::move(text), word,
                       [&](std::string_view) { return Replacement{.by = std::string(by)}; });
}

std::string with_given_names(std::string text, const std::vector<GivenFlag>& flags) {
  for (const GivenFlag& flag : flags) {
    const std::string argument = argument_of(flag.name);
    if (begins_with_argument(text, argument)) text.replace(0, argument.size(), flag.name);
    if (flag.source == flag.name) continue;
    text = replace_words(std::move(text), flag.name, [&](std::string_view rest) {
      std::string by = flag.source;
      if (!by.ends_with('=')) return Replacement{.by = by};
      if (begins_with_value(rest, flag.value)) return Replacement{.more = 1, .by = by};
      by.pop_back();
      return Replacement{.by = by};
    });
  }
  return text;
}

void remember_given_flags(std::vector<GivenFlag> flags) { remembered_flags() = std::move(flags); }

std::string with_given_names(std::string text) {
  return with_given_names(std::move(text), remembered_flags());
}

}  // namespace lockstep
