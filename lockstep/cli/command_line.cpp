#include "lockstep/cli/command_line.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <deque>
#include <memory>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/given_flags.h"
#include "lockstep/base/main.h"
#include "lockstep/base/shell.h"
#include "lockstep/cli/flag_value.h"
#include "lockstep/cli/help.h"
#include "lockstep/cli/nearest.h"

namespace lockstep {
namespace detail {

/// A row of Flag, with texts of its own and what the command line said of it.
struct CommandRow {
  std::string name;  ///< "--seed", or "RANKS" for what stands by its place
  FlagTarget target;
  std::string words, group, value, preset, letters, variable;
  std::string choices;   ///< of `check`, whose view of them is made when it is used
  std::string expected;  ///< the same
  FlagCheck check{};
  bool is_required = false, has_commas = false;
  bool is_hidden = false;            ///< not in --help, no suggestion
  bool may_lack_value = false;       ///< what is refused may have a value or not
  std::vector<std::string> typed{};  ///< as the user wrote it, once a time
  size_t taken = 0;                  ///< how often a value was taken
  bool is_given = false;
  std::string source{};       ///< if it is given: how the user wrote it, or "environment variable NAME="
  std::string value_given{};  ///< what the user gave it
  std::function<void()> on_given{};

  bool is_place() const { return name.front() != '-'; }
  bool takes_value() const { return !is_switch(target) && !may_lack_value; }
};

/// A program or a subcommand.
struct Command {
  std::string name, description;
  std::string path;  ///< with the programs before it: "lockstep bench"
  Command* parent = nullptr;
  std::deque<CommandRow> rows{};
  std::deque<Command> subcommands{};
  std::vector<HelpEntry> examples{};
  std::string group = "Flags";
  bool needs_subcommand = false;
  Command* chosen = nullptr;  ///< the subcommand
  std::function<void()> callback{};

  bool has_places() const {
    return std::any_of(rows.begin(), rows.end(), [](const CommandRow& row) { return row.is_place(); });
  }
};

}  // namespace detail

namespace {

using detail::Command;
using detail::CommandRow;

/// "file...", "[RANKS]".
std::string place_of(const CommandRow& row) {
  const std::string place = row.name + (is_list(row.target) ? "..." : "");
  return row.is_required ? place : "[" + place + "]";
}

HelpEntry make_entry(const CommandRow& row) {
  HelpEntry entry;
  if (!row.letters.empty()) entry.head = fmt::format("-{}, ", row.letters);
  entry.head += row.name;
  entry.text = help_sentence(row.words, row.preset);
  if (row.is_required) entry.text += " Required.";
  if (row.is_place() && !row.choices.empty())
    entry.text = fmt::format("One of {}. {}", one_of(split_words(row.choices)), entry.text);
  if (row.is_place() || is_switch(row.target)) return entry;
  entry.value = row.value.empty() ? value_name(row.target) : row.value;
  if (!is_list(row.target)) entry.choices = split_words(row.choices);
  if (entry.choices.empty()) entry.head += " " + entry.value;
  return entry;
}

/// Makes --help as lockrun's is.
std::string make_help(const Command& command) {
  Help help{.usage = command.path};
  if (!command.subcommands.empty()) {
    help.usage += command.has_places() ? " [subcommand]" : " subcommand";
    HelpGroup group{"Subcommands", {}};
    for (const Command& sub : command.subcommands) {
      group.entries.push_back({sub.name, help_sentence(sub.description, "")});
    }
    help.groups.push_back(group);
  }
  help.usage += " [flags]";
  help.summary = help_sentence(command.description, "");
  help.examples = command.examples;
  for (const CommandRow& row : command.rows) {
    if (row.is_hidden) continue;
    if (row.is_place()) help.usage += " " + place_of(row);
    const std::string title = row.is_place() ? "Arguments" : row.group;
    auto group =
        std::find_if(help.groups.begin(), help.groups.end(), [&](const auto& g) { return g.title == title; });
    if (group == help.groups.end()) group = help.groups.insert(help.groups.end(), HelpGroup{title, {}});
    group->entries.push_back(make_entry(row));
  }
  help.groups.push_back({"Other", {{"-h, --help", "Print this text."}}});
  help.more = "Flags may be written with underscores.";
  if (!command.subcommands.empty())
    help.more += fmt::format(" `{} <subcommand> --help` describes each.", command.path);
  return help_text(help, help_columns());
}

std::string see_help(const Command& command) { return fmt::format("see {} --help", command.path); }

[[noreturn]] void refuse_flag(const Command& command, const std::string& typed) {
  std::vector<std::string> names = {"help"};
  for (const CommandRow& row : command.rows) {
    if (!row.is_hidden && !row.is_place()) names.push_back(row.name.substr(2));
  }
  const std::string near = typed.starts_with("--") ? nearest_word(typed, names) : std::string();
  throw ValueError(fmt::format("unknown flag {}; {}", typed,
                               near.empty() ? see_help(command) : fmt::format("did you mean --{}?", near)));
}

std::vector<std::string> names_of_subcommands(const Command& command) {
  std::vector<std::string> names;
  for (const Command& sub : command.subcommands) names.push_back(sub.name);
  return names;
}

[[noreturn]] void refuse_subcommand(const Command& command, const std::string& word) {
  std::vector<std::string> names = names_of_subcommands(command);
  std::sort(names.begin(), names.end());
  const std::string near = nearest_word(word, names);
  throw ValueError(fmt::format(
      "unknown subcommand {}; {}", quoted_if_empty(word),
      near.empty() ? fmt::format("expected {}", one_of(names)) : fmt::format("did you mean {}?", near)));
}

/// The flag of a word with one or two dashes, or nullptr.
CommandRow* find_row(Command& command, const std::string& word) {
  const auto is_it = [&](const CommandRow& row) {
    if (row.is_place()) return false;
    return row.name == word || (!row.letters.empty() && "-" + row.letters == word);
  };
  const auto found = std::find_if(command.rows.begin(), command.rows.end(), is_it);
  return found == command.rows.end() ? nullptr : &*found;
}

bool is_number(const std::string& word) {
  return word.size() > 1 && (std::isdigit(static_cast<unsigned char>(word[1])) != 0 || word[1] == '.');
}

/// "-x", "--like-this"; not "-", "-1" and "-.5".
bool looks_like_flag(const std::string& word) {
  return word.size() > 1 && word.front() == '-' && !is_number(word);
}

bool asks_for_help(const std::string& word) { return word == "--help" || word == "-h"; }

/// The words of a command line as the parser gets them: underscores of flags as dashes, because Hugging Face's scripts
/// and torchrun take both, and "--flag=value" as two words. Notes in the rows how they were typed, and in the commands what
/// was chosen. Finds what the parser would only call unexpected: unknown flags and subcommands, missing values.
class Words {
 public:
  Words(Command& program, int argc, const char* const* argv)
      : command_(&program), words_(argv + std::min(argc, 1), argv + argc) {
    for (size_t at = 0; at < words_.size(); ++at) {
      if (words_[at] == "--") {
        result_.insert(result_.end(), words_.begin() + static_cast<std::ptrdiff_t>(at), words_.end());
        return;
      }
      at = looks_like_flag(words_[at]) ? take_flag(at) : take_word(at);
    }
  }

  std::vector<std::string> result() && { return std::move(result_); }

 private:
  /// The index of the last word that was taken.
  size_t take_flag(size_t at) {
    has_flag_ = true;
    const std::string& word = words_[at];
    const size_t equals = word.starts_with("--") ? word.find('=') : word.npos;
    const std::string typed = word.substr(0, equals);
    std::string name = typed;
    if (name.starts_with("--")) std::replace(name.begin(), name.end(), '_', '-');
    result_.push_back(name);
    if (asks_for_help(name)) {
      if (equals != word.npos) throw ValueError(fmt::format("flag {} takes no value ({})", typed, word));
      return at;
    }
    CommandRow* const row = find_row(*command_, name);
    if (row == nullptr) refuse_flag(*command_, typed);
    row->typed.push_back(typed);
    result_.back() = row->name;
    if (equals != word.npos) {
      if (row->takes_value()) {
        result_.push_back(word.substr(equals + 1));
      } else {
        if (is_switch(row->target) && equals + 1 == word.size())
          throw ValueError(fmt::format("{}: expected true or false", said_value(typed, "")));
        result_.back() += word.substr(equals);
      }
      return at;
    }
    if (!row->takes_value()) return is_switch(row->target) ? take_truth(at) : at;
    const bool is_missing =
        at + 1 == words_.size() || words_[at + 1] == "--" || is_known_flag(words_[at + 1]);
    if (is_missing) throw ValueError(fmt::format("flag {} needs a value; {}", typed, see_help(*command_)));
    result_.push_back(words_[at + 1]);
    return at + 1;
  }

  /// As in transformers: `--bf16 false` is `--bf16=false`, if no other word can stand there.
  size_t take_truth(size_t at) {
    if (command_->has_places() || !command_->subcommands.empty()) return at;
    if (at + 1 == words_.size() || !truth_in(words_[at + 1])) return at;
    result_.back() += "=" + words_[at + 1];
    return at + 1;
  }

  size_t take_word(size_t at) {
    const std::string& word = words_[at];
    result_.push_back(word);
    const auto sub = std::find_if(command_->subcommands.begin(), command_->subcommands.end(),
                                  [&](const Command& candidate) { return candidate.name == word; });
    if (sub != command_->subcommands.end()) {
      command_->chosen = &*sub;
      command_ = &*sub;
      has_flag_ = false;
    } else if (!has_flag_ && !command_->subcommands.empty() && !command_->has_places()) {
      refuse_subcommand(*command_, word);
    } else {
      has_flag_ = true;
    }
    return at;
  }

  bool is_known_flag(const std::string& word) const {
    if (!looks_like_flag(word)) return false;
    std::string name = word.substr(0, word.find('='));
    std::replace(name.begin(), name.end(), '_', '-');
    return asks_for_help(name) || find_row(*command_, name) != nullptr;
  }

  Command* command_;
  std::vector<std::string> words_, result_{};
  bool has_flag_ = false;  ///< no subcommand can stand here any more
};

FlagCheck check_of(const CommandRow& row) {
  FlagCheck check = row.check;
  check.choices = row.choices;
  check.expected = row.expected;
  return check;
}

std::vector<std::string> split_commas(const std::vector<std::string>& words) {
  std::vector<std::string> parts;
  for (const std::string& word : words) {
    for (size_t at = 0; at <= word.size();) {
      const size_t end = std::min(word.find(',', at), word.size());
      parts.push_back(word.substr(at, end - at));
      at = end + 1;
    }
  }
  return parts;
}

void note_given(CommandRow& row, const std::string& source, const std::string& value) {
  row.is_given = true;
  row.source = source;
  row.value_given = value;
}

/// Sets the row from what stands on the command line.
void take_values(CommandRow& row, const std::vector<std::string>& words) {
  note_given(row, row.taken < row.typed.size() ? row.typed[row.taken] : row.name,
             words.empty() ? std::string() : words.back());
  ++row.taken;
  set_flag(row.target, row.source, row.has_commas ? split_commas(words) : words, check_of(row));
  if (row.on_given) row.on_given();
}

/// Adds the row to CLI11, which gives us texts only.
void add_to(CLI::App& app, CommandRow& row) {
  CLI::Option* const option = app.add_option(row.name, [&row](const CLI::results_t& words) {
    take_values(row, words);
    return true;
  });
  // A flag that is given twice has its last value, if it is a list too. Words without a flag are one list, which later versions of
  // CLI11 would pass word by word.
  if (!row.is_place()) option->trigger_on_parse();
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  if (row.is_place() && row.is_required) option->required();  // so that no list takes its word
  if (row.may_lack_value) {
    option->expected(0, 1);
  } else if (is_switch(row.target)) {
    option->expected(0);
  } else if (is_list(row.target)) {
    option->expected(-1);
  }
}

void add_to(CLI::App& app, Command& command) {
  app.set_help_flag("-h,--help", "");
  for (CommandRow& row : command.rows) add_to(app, row);
  for (Command& sub : command.subcommands) add_to(*app.add_subcommand(sub.name, ""), sub);
}

Command& chosen_by(Command& program) {
  Command* command = &program;
  while (command->chosen != nullptr) command = command->chosen;
  return *command;
}

void take_environment(Command& command) {
  for (CommandRow& row : command.rows) {
    if (row.is_given || row.variable.empty()) continue;
    const auto text = env::get(row.variable);
    if (!text) continue;
    note_given(row, fmt::format("environment variable {}=", row.variable), *text);
    set_flag(row.target, row.source, row.has_commas ? split_commas({*text}) : std::vector<std::string>{*text},
             check_of(row));
    if (row.on_given) row.on_given();
  }
}

void refuse_missing(const Command& command) {
  if (command.needs_subcommand && command.chosen == nullptr)
    throw ValueError(fmt::format("a subcommand is missing: {}", one_of(names_of_subcommands(command))));
  for (const CommandRow& row : command.rows) {
    if (row.is_required && !row.is_given)
      throw ValueError(fmt::format("{} is required; {}", row.name, see_help(command)));
  }
}

/// The flags that were given to `command` and to the programs before it.
std::vector<GivenFlag> given_flags(const Command& command) {
  std::vector<GivenFlag> given;
  for (const Command* at = &command; at != nullptr; at = at->parent) {
    for (const CommandRow& row : at->rows) {
      if (row.is_given && !row.is_place()) given.push_back({row.name, row.source, row.value_given});
    }
  }
  return given;
}

/// A text about flags, as the user gave them. What checks arguments that a program may also set without flags calls them
/// save_steps.
std::string with_flags_for_arguments(std::string text, const Command& command) {
  for (const Command* at = &command; at != nullptr; at = at->parent) {
    for (const CommandRow& row : at->rows) {
      if (row.is_place() || row.is_hidden) continue;
      const std::string argument = argument_of(row.name);
      if (argument.find('_') != argument.npos) {
        text = replace_word(std::move(text), argument, row.name);
      } else if (text.starts_with(argument + " is ")) {  // elsewhere the word may stand for itself
        text.replace(0, argument.size(), row.name);
      }
    }
  }
  return with_given_names(std::move(text), given_flags(command));
}

/// False when --help was asked for.
bool parse(Command& program, int argc, const char* const* argv) {
  std::vector<std::string> words = Words(program, argc, argv).result();
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  CLI::App app;
  add_to(app, program);
  Command& command = chosen_by(program);
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    if (!env::get(env::kSpareFd) && env::get_int(env::kRank).value_or(0) == 0)
      std::fputs(make_help(command).c_str(), stdout);
    return false;
  } catch (const CLI::RequiredError&) {  // named below
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> left = app.remaining(true);
    const auto first = std::find_if(left.begin(), left.end(), [](const auto& word) { return word != "--"; });
    throw ValueError(fmt::format("unexpected word {}; {}",
                                 first == left.end() ? "--" : quoted_if_empty(*first), see_help(command)));
  } catch (const CLI::ParseError&) {  // nothing known: what else there is has been found before
    throw ValueError(fmt::format("the command line cannot be read; {}", see_help(command)));
  }
  for (Command* at = &command; at != nullptr; at = at->parent) {
    take_environment(*at);
    refuse_missing(*at);
  }
  remember_given_flags(given_flags(command));
  try {
    for (Command* at = &command; at != nullptr; at = at->parent) {
      if (at->callback) at->callback();
    }
  } catch (const ValueError& error) {
    throw ValueError(with_flags_for_arguments(error.what(), command));
  }
  return true;
}

}  // namespace

CommandLine CommandLine::add_subcommand(const std::string& name, const std::string& description) {
  return CommandLine(&command_->subcommands.emplace_back(Command{
      .name = name, .description = description, .path = command_->path + " " + name, .parent = command_}));
}

void CommandLine::require_subcommand() { command_->needs_subcommand = true; }

bool CommandLine::has_subcommand() const { return command_->chosen != nullptr; }

void CommandLine::begin_group(const std::string& title) { command_->group = title; }

void CommandLine::add_row(const Flag<None>& row, FlagTarget target, std::function<void()> on_given) {
  if (!row.preset.empty() && row.preset != kHeldValue) {
    const std::vector<std::string> preset = {std::string(row.preset)};
    set_flag(target, "", row.has_commas ? split_commas(preset) : preset, {});
  }
  const std::string preset = !row.default_words.empty()                ? std::string(row.default_words)
                             : is_switch(target) || row.preset.empty() ? std::string()
                                                                       : describe_value(target);
  command_->rows.push_back({.name = (row.is_place ? "" : "--") + std::string(row.name),
                            .target = std::move(target),
                            .words = std::string(row.words),
                            .group = row.group.empty() ? command_->group : std::string(row.group),
                            .value = std::string(row.value),
                            .preset = preset,
                            .letters = std::string(row.letters),
                            .variable = std::string(row.variable),
                            .choices = std::string(row.check.choices),
                            .expected = std::string(row.check.expected),
                            .check = row.check,
                            .is_required = row.is_required,
                            .has_commas = row.has_commas,
                            .on_given = std::move(on_given)});
}

void CommandLine::add_other_name(const std::string& name, const std::string& flag) {
  const auto refuse = [flag](const std::string& typed, const std::string&) {
    throw ValueError(fmt::format("unknown flag {}; did you mean {}?", typed, flag));
  };
  CommandRow& row = command_->rows.emplace_back(CommandRow{.name = name, .target = TakeText(refuse)});
  row.is_hidden = row.may_lack_value = true;
}

void CommandLine::add_refused_flag(const std::string& name, const std::string& reason) {
  if (find_row(*command_, name) != nullptr) return;
  const auto refuse = [reason, command = command_](const std::string& typed, const std::string&) {
    throw ValueError(
        fmt::format("{} is not supported: {}", typed, with_flags_for_arguments(reason, *command)));
  };
  CommandRow& row = command_->rows.emplace_back(CommandRow{.name = name, .target = TakeText(refuse)});
  row.is_hidden = row.may_lack_value = true;
}

void CommandLine::add_example(const std::string& meaning, const std::string& command) {
  command_->examples.push_back({command, meaning});
}

void CommandLine::callback(std::function<void()> chosen) { command_->callback = std::move(chosen); }

bool parse_command_line(const std::string& name, const std::string& description,
                        const std::function<void(CommandLine)>& add, int argc, const char* const* argv) {
  Command program{.name = name, .description = description, .path = name};
  add(CommandLine(&program));
  return parse(program, argc, argv);
}

int run_subcommands(const std::string& name, const std::string& description,
                    const std::vector<AddSubcommand>& subcommands, int argc, const char* const* argv) {
  return run_main(name.c_str(), [&] {
    Command program{.name = name, .description = description, .path = name, .needs_subcommand = true};
    Action action;
    for (const AddSubcommand add : subcommands) add(CommandLine(&program), action);
    return parse(program, argc, argv) ? action() : 0;
  });
}

}  // namespace lockstep
