// Command lines of programs with flags and subcommands. Their flags are the rows of tables (cli/flag.h), from which --help, the
// conversions, the checks and all errors are made. The parser behind it is CLI11, which only command_line.cpp sees: every
// source that sees it takes seconds more to compile, and no user sees its words.
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
struct Command;
}  // namespace detail

/// A program or one of its subcommands: a handle, cheap to copy, valid while the command line is parsed.
/// Parsing writes into the values given here, which must live as long. A flag may be typed --like-this or --like_this. One that
/// is given twice takes the last value, as in argparse; one that takes a list takes the last list. Errors name a flag as it was
/// typed. Descriptions are sentences.
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
  /// Adds the rows of a table. Members without a preset keep what `values` has.
  template <class Values>
  void add_table(std::span<const Flag<std::type_identity_t<Values>>> table, Values& values) {
    for (const auto& row : table) {
      add_row(
          Flag<None>{.name = row.name,
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
          flag_target(row, values),
          row.on_given == nullptr ? std::function<void()>()
                                  : [&values, call = row.on_given] { call(values); });
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
  void add_row(const Flag<None>& row, FlagTarget target, std::function<void()> on_given);
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
