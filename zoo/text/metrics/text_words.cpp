#include "lockstep/zoo/text/metrics/text_words.h"

#include <array>

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
  std::string text(line.data(), end);
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

}  // namespace lockstep::text::text_counts
