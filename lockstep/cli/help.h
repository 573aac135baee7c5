// The layout of --help, the same for every program.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A line of --help: "--seed N" and what it is for.
struct HelpEntry {
  std::string head, text;
  std::vector<std::string> choices{};  ///< they stand in place of the value, where the window is wide enough
  std::string value{};                 ///< otherwise its name, and the choices stand in the text
};

/// The entry with its choices in place of its value where `columns` are enough for them, else in its text.
HelpEntry with_value(HelpEntry entry, size_t columns);

struct HelpGroup {
  std::string title;
  std::vector<HelpEntry> entries;
};

struct Help {
  std::string usage;                  ///< what follows "Usage: "
  std::string summary{};              ///< what the program does
  std::vector<HelpEntry> examples{};  ///< head: a command, text: its meaning
  std::vector<HelpGroup> groups{};    ///< of flags
  std::vector<HelpEntry> sections{};  ///< head: a title, text: a paragraph
  std::string more{};                 ///< the last line
};

/// The text for so many columns (40 or more; words and quoted texts are not broken).
std::string help_text(const Help& help, size_t columns);

/// `text` as a sentence, and after it the default, where there is one: "Samples per rank. Default: 8."
std::string help_sentence(std::string_view text, std::string_view preset);

/// Columns of the window, as Python's argparse sees them: COLUMNS where it is a number above 0, else those of the terminal
/// that standard output is; 80 where it is none.
int terminal_columns();

/// Columns of --help: terminal_columns(), but 40 at least.
size_t help_columns();

}  // namespace lockstep
