#include "lockstep/cli/command_line.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <sstream>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/cli/help.h"
#include "lockstep/cli/nearest.h"

namespace lockstep {
namespace {

constexpr const char* kFirstGroup = "Flags";

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option*) { return true; });
}

bool is_hidden(const CLI::Option& option) { return option.get_group().empty(); }

bool has_positionals(const CLI::App& app) {
  const auto options = options_of(app);
  return std::any_of(options.begin(), options.end(),
                     [](const auto* option) { return option->get_positional(); });
}

/// "file...", "[RANKS]".
std::string place_of(const CLI::Option& positional) {
  const std::string place = positional.get_name() + (positional.get_expected_max() > 1 ? "..." : "");
  return positional.get_required() ? place : "[" + place + "]";
}

HelpEntry entry_of(const CLI::Option& option) {
  std::string head;
  for (const std::string& letter : option.get_snames()) head += fmt::format("-{}, ", letter);
  head += option.get_positional() ? option.get_name() : "--" + option.get_lnames().front();
  const bool takes_value = option.get_type_size() > 0 && option.get_expected_max() > 0;
  if (takes_value && !option.get_positional()) head += " " + option.get_type_name();
  std::string preset = option.get_default_str();
  if (preset.size() > 1 && preset.front() == '[' && preset.back() == ']')
    preset = preset.substr(1, preset.size() - 2);
  std::string text = help_sentence(option.get_description(), preset);
  return {head, option.get_required() ? fmt::format("{} Required.", text) : text};
}

/// CLI11 keeps one text for the end of --help: our examples are its pairs of lines.
std::vector<HelpEntry> examples_of(const CLI::App& app) {
  std::vector<HelpEntry> examples;
  std::istringstream lines(app.get_footer());
  for (HelpEntry entry; std::getline(lines, entry.text) && std::getline(lines, entry.head);) {
    examples.push_back(entry);
  }
  return examples;
}

/// Makes --help as lockrun's is.
class HelpFormatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode /*mode*/) const override {
    const auto subcommands = subcommands_of(*app);
    Help help{.usage = name};
    if (!subcommands.empty()) {
      help.usage += has_positionals(*app) ? " [subcommand]" : " subcommand";
      HelpGroup group{"Subcommands", {}};
      for (const auto* sub : subcommands) {
        group.entries.push_back({sub->get_name(), help_sentence(sub->get_description(), "")});
      }
      help.groups.push_back(group);
    }
    help.usage += " [flags]";
    help.summary = help_sentence(app->get_description(), "");
    help.examples = examples_of(*app);
    for (const auto* option : options_of(*app)) {
      if (option == app->get_help_ptr() || is_hidden(*option)) continue;
      if (option->get_positional()) help.usage += " " + place_of(*option);
      const std::string title = option->get_positional() ? "Arguments" : option->get_group();
      auto group = std::find_if(help.groups.begin(), help.groups.end(),
                                [&](const auto& g) { return g.title == title; });
      if (group == help.groups.end()) group = help.groups.insert(help.groups.end(), HelpGroup{title, {}});
      group->entries.push_back(entry_of(*option));
    }
    help.groups.push_back({"Other", {{"-h, --help", "Print this text."}}});
    help.more = "Flags may be written with underscores.";
    if (!subcommands.empty()) help.more += fmt::format(" `{} <subcommand> --help` describes each.", name);
    return help_text(help, help_columns());
  }
};

[[noreturn]] void refuse_flag(const CLI::App& app, const std::string& program, const std::string& word) {
  std::vector<std::string> names;
  for (const auto* option : options_of(app)) {
    if (!is_hidden(*option))
      names.insert(names.end(), option->get_lnames().begin(), option->get_lnames().end());
  }
  const std::string near = nearest_word(word, names);
  throw ValueError(fmt::format(
      "unknown flag {}{}", word.substr(0, word.find('=')),
      near.empty() ? fmt::format("; see {} --help", program) : fmt::format("; did you mean --{}?", near)));
}

[[noreturn]] void refuse_subcommand(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const auto* sub : subcommands_of(app)) names.push_back(sub->get_name());
  std::sort(names.begin(), names.end());
  const std::string near = nearest_word(word, names);
  throw ValueError(fmt::format(
      "unknown subcommand {}{}", word,
      near.empty() ? fmt::format("; expected {}", one_of(names)) : fmt::format("; did you mean {}?", near)));
}

/// Finds the words that CLI11 would call "not expected", without saying what was.
void refuse_unknown(const CLI::App& program, const std::vector<std::string>& words) {
  const CLI::App* app = &program;
  std::string name = program.get_name();
  bool is_subcommands_place = true;
  for (const std::string& word : words) {
    if (word == "--") return;
    if (word.size() > 1 && word.front() == '-') {
      is_subcommands_place = false;
      const bool is_long = word.starts_with("--");
      if (is_long && app->get_option_no_throw(word.substr(0, word.find('='))) == nullptr)
        refuse_flag(*app, name, word);
      continue;
    }
    const auto subcommands = subcommands_of(*app);
    const auto sub = std::find_if(subcommands.begin(), subcommands.end(),
                                  [&](const CLI::App* candidate) { return candidate->check_name(word); });
    if (sub != subcommands.end()) {
      app = *sub;
      name += " " + word;
    } else if (is_subcommands_place && !subcommands.empty() && !has_positionals(*app)) {
      refuse_subcommand(*app, word);
    } else {
      is_subcommands_place = false;
    }
  }
}

/// argv[1..], with the underscores of flags written as dashes: Hugging Face's scripts and torchrun take both.
std::vector<std::string> words_of(int argc, const char* const* argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  for (std::string& word : words) {
    if (!word.starts_with("--")) continue;
    const auto end = word.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size()));
    std::replace(word.begin(), end, '_', '-');
  }
  return words;
}

/// A check for CLI11: what it returns is the error, "0: expected a number above 0".
template <class Fits>
std::function<std::string(const std::string&)> number_that(Fits fits, std::string expected) {
  return [fits, expected = std::move(expected)](const std::string& text) {
    double value = 0;
    const char* const end = text.data() + text.size();
    const bool is_number = std::from_chars(text.data(), end, value).ptr == end && !text.empty();
    return is_number && fits(value) ? std::string() : fmt::format("{}: expected {}", text, expected);
  };
}

/// CLI11's errors in our words.
std::string message_of(const CLI::ParseError& error, const CLI::App& program) {
  const CLI::App* app = &program;
  std::string see = "; see " + program.get_name();
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    see += " " + app->get_name();
  }
  see += " --help";
  const std::string text = error.what();
  const auto is = [&](CLI::ExitCodes code) { return error.get_exit_code() == static_cast<int>(code); };
  if (is(CLI::ExitCodes::ExtrasError) && !program.remaining(true).empty()) {
    return fmt::format("unexpected word {}{}", program.remaining(true).back(), see);
  }
  const size_t equals = text.find(" = ");
  if (is(CLI::ExitCodes::ConversionError) && equals != text.npos) {
    const std::string name = text.substr(text.find(": ") + 2, equals - text.find(": ") - 2);
    const CLI::Option* const option = app->get_option_no_throw(name);
    const std::string type = option == nullptr ? "" : option->get_type_name();
    return fmt::format("{} {}: expected a {}number", name, text.substr(equals + 3),
                       type == "X" ? "" : "whole ");
  }
  if (is(CLI::ExitCodes::ValidationError) && text.find(": ") != text.npos) {
    return std::string(text).replace(text.find(": "), 2, " ");
  }
  if (is(CLI::ExitCodes::ArgumentMismatch) && text.ends_with(" missing")) {
    return fmt::format("flag {} needs a value{}", text.substr(0, text.find(':')), see);
  }
  if (is(CLI::ExitCodes::RequiredError) && text.find("ubcommand") != text.npos) {
    std::vector<std::string> names;
    for (const auto* sub : subcommands_of(*app)) names.push_back(sub->get_name());
    return fmt::format("a subcommand is missing: {}", one_of(names));
  }
  return text;
}

void prepare(CLI::App& app) {
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("-h,--help", "Print this text.");
  app.option_defaults()->group(kFirstGroup);
}

/// False when --help was asked for.
bool parse(CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> words = words_of(argc, argv);
  refuse_unknown(app, words);
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  try {
    app.parse(words);
    return true;
  } catch (const CLI::CallForHelp&) {
    if (env::get_int(env::kRank).value_or(0) == 0) std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    throw ValueError(message_of(error, app));
  }
}

}  // namespace

CommandOption& CommandOption::required() {
  option_->required();
  return *this;
}

CommandOption& CommandOption::with_commas() {
  option_->delimiter(',');
  return *this;
}

CommandOption& CommandOption::in_range(int least, int most) {
  option_->check(number_that([=](double value) { return value >= least && value <= most; },
                             fmt::format("a number from {} to {}", least, most)));
  return *this;
}

CommandOption& CommandOption::in_range(double least, double most) {
  std::ostringstream expected;
  expected << "a number from " << least << " to " << most;
  option_->check(number_that([=](double value) { return value >= least && value <= most; }, expected.str()));
  return *this;
}

CommandOption& CommandOption::one_of(const std::vector<std::string>& values) {
  option_->check([values](const std::string& text) {
    const bool is_one = std::find(values.begin(), values.end(), text) != values.end();
    return is_one ? std::string() : fmt::format("{}: expected {}", text, lockstep::one_of(values));
  });
  return *this;
}

CommandOption& CommandOption::positive() {
  option_->check(number_that([](double value) { return value > 0; }, "a number above 0"));
  return *this;
}

CommandOption& CommandOption::not_negative() {
  option_->check(number_that([](double value) { return value >= 0; }, "0 or more"));
  return *this;
}

CommandOption& CommandOption::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

CommandOption& CommandOption::with_default() {
  option_->capture_default_str();
  return *this;
}

CommandOption& CommandOption::default_text(const std::string& text) {
  option_->default_str(text);
  return *this;
}

CommandLine CommandLine::add_subcommand(const std::string& name, const std::string& description) {
  CLI::App* const sub = app_->add_subcommand(name, description);
  sub->footer("");  // CLI11 copies the parent's, which has the parent's examples
  prepare(*sub);
  return CommandLine(sub);
}

void CommandLine::require_subcommand() { app_->require_subcommand(1); }

bool CommandLine::has_subcommand() const { return !app_->get_subcommands().empty(); }

void CommandLine::begin_group(const std::string& title) { app_->option_defaults()->group(title); }

CommandOption CommandLine::add(CLI::Option* option, const char* type_name) {
  option->type_name(type_name);
  if (option->get_expected_max() == 1) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  return CommandOption(option);
}

CommandOption CommandLine::add_option(const std::string& name, std::string& value,
                                      const std::string& description) {
  return add(app_->add_option(name, value, description), "TEXT");
}

CommandOption CommandLine::add_option(const std::string& name, std::filesystem::path& value,
                                      const std::string& description) {
  return add(app_->add_option(name, value, description), "FILE");
}

CommandOption CommandLine::add_option(const std::string& name, int& value, const std::string& description) {
  return add(app_->add_option(name, value, description), "N");
}

CommandOption CommandLine::add_option(const std::string& name, int64_t& value,
                                      const std::string& description) {
  return add(app_->add_option(name, value, description), "N");
}

CommandOption CommandLine::add_option(const std::string& name, size_t& value,
                                      const std::string& description) {
  return add(app_->add_option(name, value, description), "N");
}

CommandOption CommandLine::add_option(const std::string& name, std::optional<size_t>& value,
                                      const std::string& description) {
  return add(app_->add_option(name, value, description), "N");
}

CommandOption CommandLine::add_option(const std::string& name, std::optional<int64_t>& value,
                                      const std::string& description) {
  return add(app_->add_option(name, value, description), "N");
}

CommandOption CommandLine::add_option(const std::string& name, std::optional<double>& value,
                                      const std::string& description) {
  return add(app_->add_option(name, value, description), "X");
}

CommandOption CommandLine::add_option(const std::string& name, double& value,
                                      const std::string& description) {
  return add(app_->add_option(name, value, description), "X");
}

CommandOption CommandLine::add_option(const std::string& name, std::vector<std::string>& values,
                                      const std::string& description) {
  return add(app_->add_option(name, values, description), "LIST");
}

CommandOption CommandLine::add_option(const std::string& name, std::vector<int>& values,
                                      const std::string& description) {
  return add(app_->add_option(name, values, description), "LIST");
}

CommandOption CommandLine::add_option(const std::string& name, std::function<void(const std::string&)> take,
                                      const std::string& description) {
  return add(app_->add_option_function<std::string>(name, std::move(take), description), "TEXT");
}

void CommandLine::add_flag(const std::string& name, bool& value, const std::string& description) {
  app_->add_flag(name, value, description);
}

void CommandLine::add_other_name(const std::string& name, const std::string& flag) {
  const auto refuse = [name, flag](const std::string&) {
    throw ValueError(fmt::format("unknown flag {}; did you mean {}?", name, flag));
  };
  app_->add_option_function<std::string>(name, refuse)->expected(0, 1)->group("");
}

void CommandLine::add_refused_flag(const std::string& name, const std::string& reason) {
  if (app_->get_option_no_throw(name) != nullptr) return;
  const auto refuse = [name, reason](const std::string&) {
    throw ValueError(fmt::format("{} is not supported: {}", name, reason));
  };
  app_->add_option_function<std::string>(name, refuse)->expected(0, 1)->group("");
}

void CommandLine::add_example(const std::string& meaning, const std::string& command) {
  app_->footer(app_->get_footer() + meaning + "\n" + command + "\n");
}

void CommandLine::callback(std::function<void()> chosen) { app_->callback(std::move(chosen)); }

bool parse_command_line(const std::string& name, const std::string& description,
                        const std::function<void(CommandLine)>& add, int argc, const char* const* argv) {
  CLI::App app(description, name);
  prepare(app);
  add(CommandLine(&app));
  return parse(app, argc, argv);
}

int run_subcommands(const std::string& name, const std::string& description,
                    const std::vector<AddSubcommand>& subcommands, int argc, const char* const* argv) {
  return run_main(name.c_str(), [&] {
    CLI::App app(description, name);
    prepare(app);
    app.require_subcommand(1);
    Action action;
    for (const AddSubcommand add : subcommands) add(CommandLine(&app), action);
    return parse(app, argc, argv) ? action() : 0;
  });
}

}  // namespace lockstep
