#include "lockstep/zoo/text/metrics/text_words.h"

#include <array>

#include "lockstep/zoo/text/metrics/characters.h"
#include "lockstep/zoo/text/utf8.h"

namespace lockstep::text::text_counts {
namespace {

// Python's str.isspace().
bool is_python_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_dot(char c) { return c == '.' || c == ','; }
// [\{-\~\[-\` -\&\(-\+\:-\@\/]
bool stands_alone(char c) {
  return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') ||
         (c >= '(' && c <= '+') || (c >= ':' && c <= '@') || c == '/';
}

// re.sub of two characters in a row, from left to right, without overlap.
template <class Matches>
std::string space_pairs(const std::string& text, const Matches& matches,
                        const std::array<const char*, 3>& spaces) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i + 1 == text.size() || !matches(text[i], text[i + 1])) {
      out += text[i];
      continue;
    }
    ((((out += spaces[0]) += text[i]) += spaces[1]) += text[i + 1]) += spaces[2];
    ++i;
  }
  return out;
}

using CodePoints = std::u32string;

/// As space_pairs(), over code points.
template <class Matches>
CodePoints space_code_points(const CodePoints& text, const Matches& matches,
                             const std::array<const char32_t*, 3>& spaces) {
  CodePoints out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i + 1 == text.size() || !matches(text[i], text[i + 1])) {
      out += text[i];
      continue;
    }
    ((((out += spaces[0]) += text[i]) += spaces[1]) += text[i + 1]) += spaces[2];
    ++i;
  }
  return out;
}

bool is_one_character(std::string_view word) {
  const char* at = word.data();
  text::next_code_point(at);
  return at == word.data() + word.size();
}

}  // namespace

std::vector<std::string_view> split_words(std::string_view line) {
  std::vector<std::string_view> words;
  const char* const end = line.data() + line.size();
  const char* begin = nullptr;  // of the current word
  for (const char* at = line.data(); at != end;) {
    const char* const here = at;
    const bool is_space = is_python_space(text::next_code_point(at));
    if (!is_space && begin == nullptr) begin = here;
    if (is_space && begin != nullptr) {
      words.emplace_back(begin, static_cast<size_t>(here - begin));
      begin = nullptr;
    }
  }
  if (begin != nullptr) words.emplace_back(begin, static_cast<size_t>(end - begin));
  return words;
}

std::string tokenize_13a(std::string_view line) {
  const auto words = split_words(line);
  if (words.empty()) return "";
  const char* const end = words.back().data() + words.back().size();
  std::string text(line.substr(0, static_cast<size_t>(end - line.data())));
  replace_all(text, "<skipped>", "");
  replace_all(text, "-\n", "");
  replace_all(text, "\n", " ");
  replace_all(text, "&quot;", "\"");
  replace_all(text, "&amp;", "&");
  replace_all(text, "&lt;", "<");
  replace_all(text, "&gt;", ">");

  std::string spaced;
  for (const char c : " " + text + " ") {
    if (stands_alone(c)) {
      ((spaced += ' ') += c) += ' ';
    } else {
      spaced += c;
    }
  }
  // A full stop or comma unless a digit stands before it, then unless one follows; a dash behind a digit.
  spaced = space_pairs(spaced, [](char a, char b) { return !is_digit(a) && is_dot(b); }, {"", " ", " "});
  spaced = space_pairs(spaced, [](char a, char b) { return is_dot(a) && !is_digit(b); }, {" ", " ", ""});
  return space_pairs(spaced, [](char a, char b) { return is_digit(a) && b == '-'; }, {"", " ", " "});
}

std::string tokenize_intl(std::string_view line) {
  const auto words = split_words(line);
  if (words.empty()) return "";
  CodePoints text;
  const char* const end = words.back().data() + words.back().size();
  for (const char* at = line.data(); at != end;) text += text::next_code_point(at);
  const auto is_number = [](char32_t code) { return category(code) == Category::number; };
  const auto is_mark = [](char32_t code) { return category(code) == Category::punctuation; };
  text = space_code_points(text, [&](char32_t a, char32_t b) { return is_mark(b) && !is_number(a); },
                           {U"", U" ", U" "});
  text = space_code_points(text, [&](char32_t a, char32_t b) { return is_mark(a) && !is_number(b); },
                           {U" ", U" ", U""});
  std::string spaced;
  for (const char32_t code : text) {
    const bool is_symbol = category(code) == Category::symbol;
    if (is_symbol) spaced += ' ';
    append_code_point(spaced, code);
    if (is_symbol) spaced += ' ';
  }
  return spaced;
}

std::vector<std::string_view> split_characters(std::string_view line) {
  std::vector<std::string_view> characters;
  for (const std::string_view word : split_words(line)) {
    for (const char *at = word.data(), *const end = at + word.size(); at != end;) {
      const char* const here = at;
      text::next_code_point(at);
      characters.emplace_back(here, static_cast<size_t>(at - here));
    }
  }
  return characters;
}

std::vector<std::string_view> split_off_punctuation(std::string_view line) {
  std::vector<std::string_view> words;
  for (const std::string_view word : split_words(line)) {
    if (is_one_character(word)) {
      words.push_back(word);
    } else if (is_ascii_punctuation(word.back())) {
      words.push_back(word.substr(0, word.size() - 1));
      words.push_back(word.substr(word.size() - 1));
    } else if (is_ascii_punctuation(word.front())) {
      words.push_back(word.substr(0, 1));
      words.push_back(word.substr(1));
    } else {
      words.push_back(word);
    }
  }
  return words;
}

}  // namespace lockstep::text::text_counts
