#include "lockstep/cli/help.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/cli/nearest.h"

namespace lockstep {
namespace {

constexpr size_t kIndent = 27;
/// Narrower terminals have the text below the flag.
constexpr size_t kLeastForIndent = 70, kNarrowIndent = 6;

/// Appends the words of `text` to a line that has `column` columns already; further lines begin at `indent`.
void append_wrapped(std::string& out, std::string_view text, size_t columns, size_t indent, size_t column) {
  for (bool is_first = true; !text.empty(); is_first = false) {
    const size_t end = text.find(' ');
    const std::string_view word = text.substr(0, end);
    if (!is_first && column + 1 + word.size() > columns) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!is_first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  out += '\n';
}

/// Words of a command, quoted texts whole, and each flag with its value.
std::vector<std::string> parts_of(std::string_view command) {
  std::vector<std::string> parts = {""};
  char quote = '\0';
  for (const char c : command) {
    if (quote == '\0' && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == quote) {
      quote = '\0';
    }
    if (c == ' ' && quote == '\0') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const bool has_value = parts[i].starts_with('-') && parts[i].find_first_of(" =") == std::string::npos;
    if (!has_value || parts[i + 1].starts_with('-')) continue;
    parts[i] += " " + parts[i + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
  return parts;
}

/// A command of a shell, broken where it can be typed so.
void append_command(std::string& out, std::string_view command, size_t columns, size_t indent) {
  constexpr std::string_view kBreak = " \\\n";
  constexpr size_t kRoomForBreak = 2;
  const std::vector<std::string> parts = parts_of(command);
  out += std::string(indent, ' ');
  size_t column = indent;
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t room = i + 1 == parts.size() ? 0 : kRoomForBreak;
    if (i > 0 && column + 1 + parts[i].size() + room > columns) {
      out += kBreak;
      out += std::string(indent + 2, ' ');
      column = indent + 2;
    } else if (i > 0) {
      out += ' ';
      ++column;
    }
    out += parts[i];
    column += parts[i].size();
  }
  out += '\n';
}

/// "text|json|svg".
std::string placeholder(const std::vector<std::string>& choices) {
  std::string text;
  for (const std::string& choice : choices) text += (text.empty() ? "" : "|") + choice;
  return text;
}

void append_entry(std::string& out, const HelpEntry& plain, size_t columns, size_t indent) {
  const HelpEntry entry = with_value(plain, columns);
  const std::string head = "  " + entry.head;
  size_t column = head.size();
  out += head;
  if (column + 2 > indent) {
    out += '\n';
    column = 0;
  }
  out += std::string(indent - column, ' ');
  append_wrapped(out, entry.text, columns, indent, indent);
}

}  // namespace

HelpEntry with_value(HelpEntry entry, size_t columns) {
  if (entry.choices.empty()) return entry;
  const std::string choices = placeholder(entry.choices);
  if (2 + entry.head.size() + 1 + choices.size() <= columns) {
    entry.head += " " + choices;
  } else {
    entry.head += " " + entry.value;
    entry.text = fmt::format("One of {}. {}", one_of(entry.choices), entry.text);
  }
  return entry;
}

std::string help_text(const Help& help, size_t columns) {
  std::string out;
  append_wrapped(out, "Usage: " + help.usage, columns, kNarrowIndent, 0);
  out += '\n';
  if (!help.summary.empty()) append_wrapped(out, help.summary, columns, 0, 0);
  if (!help.examples.empty()) out += '\n';
  for (const HelpEntry& example : help.examples) {
    out += "  ";
    append_wrapped(out, example.text + ":", columns, 2, 2);
    append_command(out, example.head, columns, 4);
  }
  const size_t indent = columns < kLeastForIndent ? kNarrowIndent : kIndent;
  for (const HelpGroup& group : help.groups) {
    out += "\n" + group.title + ":\n";
    for (const HelpEntry& entry : group.entries) append_entry(out, entry, columns, indent);
  }
  for (const HelpEntry& section : help.sections) {
    out += fmt::format("\n{}:\n  ", section.head);
    append_wrapped(out, section.text, columns, 2, 2);
  }
  if (!help.more.empty()) {
    out += '\n';
    append_wrapped(out, help.more, columns, 0, 0);
  }
  return out;
}

std::string help_sentence(std::string_view text, std::string_view preset) {
  std::string sentence(text);
  if (!sentence.empty() && sentence.back() != '.') sentence += '.';
  if (!preset.empty()) sentence += fmt::format(" Default: {}.", preset);
  return sentence;
}

int terminal_columns() {
  const std::string columns = env::get("COLUMNS").value_or("");
  int number = 0;
  const char* const end = columns.data() + columns.size();
  const auto [last, error] = std::from_chars(columns.data(), end, number);
  if (error == std::errc() && last == end && number > 0) return number;
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

size_t help_columns() { return static_cast<size_t>(std::max(terminal_columns(), 40)); }

}  // namespace lockstep
