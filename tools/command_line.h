// The command line of `lockstep`. The parser behind it is CLI11, which only command_line.cpp sees: every
// source that sees it takes seconds more to compile.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lockstep::tools {

/// An option that was just added to a Subcommand. Every setter returns it again.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option& required();
  /// Several values may stand in one word, with commas between.
  Option& with_commas();
  Option& in_range(int least, int most);
  Option& in_range(double least, double most);
  Option& one_of(const std::vector<std::string>& values);
  Option& positive();
  Option& not_negative();
  /// What --help shows instead of the value's type.
  Option& type_name(const std::string& name);
  /// --help shows the default value.
  Option& with_default();

 private:
  CLI::Option* option_;
};

/// `lockstep` itself or one of its subcommands: a handle, cheap to copy, valid while the command line is
/// parsed. Parsing writes into the values given here, which must live as long. `name` is "--like-this", or
/// without dashes for what stands by its place.
class Subcommand {
 public:
  explicit Subcommand(CLI::App* app) : app_(app) {}
  Subcommand add_subcommand(const std::string& name, const std::string& description);
  /// One of the subcommands must be given.
  void require_subcommand();
  /// Whether one was given; known when the callback runs.
  bool has_subcommand() const;

  Option add_option(const std::string& name, std::string& value, const std::string& description);
  Option add_option(const std::string& name, std::filesystem::path& value, const std::string& description);
  Option add_option(const std::string& name, int& value, const std::string& description);
  Option add_option(const std::string& name, size_t& value, const std::string& description);
  Option add_option(const std::string& name, double& value, const std::string& description);
  Option add_option(const std::string& name, std::vector<std::string>& values,
                    const std::string& description);
  Option add_option(const std::string& name, std::vector<int>& values, const std::string& description);
  void add_flag(const std::string& name, bool& value, const std::string& description);

  /// Runs when this command was chosen and its options are known.
  void callback(std::function<void()> chosen);
  /// For a callback: ends parsing with the message that `what` is required.
  [[noreturn]] static void fail_required(const std::string& what);

 private:
  CLI::App* app_;
};

/// A chosen subcommand's work; returns the exit code.
using Action = std::function<int()>;

/// Adds a subcommand to `app` and sets `action` when it is chosen.
using AddSubcommand = void (*)(Subcommand app, Action& action);

/// main() of a program that is a set of subcommands: parses, answers --help and mistakes, runs what was
/// chosen. Returns the exit code.
int run_subcommands(const std::string& name, const std::string& description,
                    const std::vector<AddSubcommand>& subcommands, int argc, const char* const* argv);

}  // namespace lockstep::tools
