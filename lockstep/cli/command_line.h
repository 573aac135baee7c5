// Command lines of programs with flags and subcommands. They are a table of rows (cli/flag.h), made by calls or given as a
// constant; --help, the conversions, the checks and all errors are made from the rows. The parser behind it is CLI11, which
// only command_line.cpp sees: every source that sees it takes seconds more to compile, and no user sees its words.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/cli/flag.h"

namespace lockstep {

namespace detail {
struct CommandRow;
struct Command;
}  // namespace detail

/// An option that was just added to a CommandLine. Every setter returns it again.
class CommandOption {
 public:
  explicit CommandOption(detail::CommandRow* row) : row_(row) {}
  CommandOption& required();
  /// Several values may stand in one word, with commas between.
  CommandOption& with_commas();
  CommandOption& in_range(int least, int most);
  CommandOption& in_range(double least, double most);
  /// Any other value is an error. --help shows the words in place of the value.
  CommandOption& one_of(const std::vector<std::string>& values);
  /// --help shows the words in place of the value, which what takes it checks. None: it shows the value's name.
  CommandOption& show_choices(const std::vector<std::string>& values);
  CommandOption& positive();
  CommandOption& not_negative();
  /// What --help calls the value: FILE, SECONDS. By default N for numbers, X for fractions, FILE, TEXT.
  CommandOption& type_name(const std::string& name);
  /// --help shows the value that the variable has now as the default.
  CommandOption& with_default();
  /// --help shows `text` as the default.
  CommandOption& default_text(const std::string& text);
  /// Where the flag is not given, an environment variable of this name sets the value, if it is set and not empty.
  CommandOption& from_environment(const std::string& variable);
  /// `given` is called where the flag is given, after its value was taken.
  CommandOption& on_given(std::function<void()> given);

 private:
  detail::CommandRow* row_;
};

/// A program or one of its subcommands: a handle, cheap to copy, valid while the command line is parsed.
/// Parsing writes into the values given here, which must live as long. `name` is "--like-this" (--like_this
/// is accepted too), or without dashes for what stands by its place. Descriptions are sentences. An option that is given
/// twice takes the last value, as in argparse; one that takes a list takes the last list. Errors name a flag as it was typed.
class CommandLine {
 public:
  explicit CommandLine(detail::Command* command) : command_(command) {}
  CommandLine add_subcommand(const std::string& name, const std::string& description);
  /// One of the subcommands must be given.
  void require_subcommand();
  /// Whether one was given; known when the callback runs.
  bool has_subcommand() const;

  /// What is added from now on stands under this heading in --help; the first one is "Flags".
  void begin_group(const std::string& title);
  /// Adds a flag that sets `value`.
  template <FlagType T>
  CommandOption add_option(const std::string& name, T& value, const std::string& description) {
    return add(name, FlagTarget(&value), description);
  }
  /// `take` gets the text; it may throw ValueError.
  CommandOption add_option(const std::string& name, TakeText take, const std::string& description);
  CommandOption add_option(const std::string& name, TakeNamedText take, const std::string& description);
  void add_flag(const std::string& name, bool& value, const std::string& description);
  /// Adds the rows of a table. Members without a preset keep what `values` has.
  template <class Values>
  void add_table(std::span<const Flag<std::type_identity_t<Values>>> table, Values& values) {
    for (const auto& row : table) {
      add_row(Flag<None>{.name = row.name,
                         .preset = row.preset,
                         .default_words = row.default_words,
                         .check = row.check,
                         .value = row.value,
                         .group = row.group,
                         .words = row.words,
                         .letters = row.letters,
                         .variable = row.variable,
                         .is_required = row.is_required,
                         .is_place = row.is_place,
                         .has_commas = row.has_commas},
              flag_target(row, values));
    }
  }
  /// What other programs call `flag`: refused with the advice to use that one.
  void add_other_name(const std::string& name, const std::string& flag);
  /// A flag that users know from other programs and that this one does not have: refused with the reason. A
  /// flag of that name that the program has already stays.
  void add_refused_flag(const std::string& name, const std::string& reason);

  /// An example for --help: what it does, and the words to type.
  void add_example(const std::string& meaning, const std::string& command);

  /// Runs when this command was chosen and its options are known: the place for checks of flags together. A ValueError of it
  /// names flags as they were typed: "--batch_size" for "--batch-size", and "--batch-size" for the argument batch_size.
  void callback(std::function<void()> chosen);

 private:
  struct None {};
  CommandOption add(const std::string& name, FlagTarget target, const std::string& description);
  void add_row(const Flag<None>& row, FlagTarget target);
  detail::Command* command_;
};

/// Reads the command line of a program without subcommands, to which `add` adds its flags. False when --help
/// was asked for and has been printed (under a launcher by rank 0 only). Throws ValueError naming the word
/// that is wrong and, for an unknown flag, the nearest one.
bool parse_command_line(const std::string& name, const std::string& description,
                        const std::function<void(CommandLine)>& add, int argc, const char* const* argv);

/// parse_command_line() of a program whose flags are the rows of one table. Returns what they set in a new `Values`; nothing if
/// --help was asked for.
template <class Values>
std::optional<Values> parse_table(const std::string& name, const std::string& description,
                                  std::span<const Flag<std::type_identity_t<Values>>> table, int argc,
                                  const char* const* argv) {
  Values values;
  const auto add = [&](CommandLine program) { program.add_table<Values>(table, values); };
  if (!parse_command_line(name, description, add, argc, argv)) return std::nullopt;
  return values;
}

/// A chosen subcommand's work; returns the exit code.
using Action = std::function<int()>;

/// Adds a subcommand to `program` and sets `action` when it is chosen.
using AddSubcommand = void (*)(CommandLine program, Action& action);

/// main() of a program that is a set of subcommands: parses, answers --help and mistakes, runs what was
/// chosen. Returns the exit code.
int run_subcommands(const std::string& name, const std::string& description,
                    const std::vector<AddSubcommand>& subcommands, int argc, const char* const* argv);

}  // namespace lockstep
