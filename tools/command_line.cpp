#include "tools/command_line.h"

#include <CLI/CLI.hpp>

#include "lockstep/base/main.h"

namespace lockstep::tools {

Option& Option::required() {
  option_->required();
  return *this;
}

Option& Option::with_commas() {
  option_->delimiter(',');
  return *this;
}

Option& Option::in_range(int least, int most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Option& Option::in_range(double least, double most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Option& Option::one_of(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}

Option& Option::positive() {
  option_->check(CLI::PositiveNumber);
  return *this;
}

Option& Option::not_negative() {
  option_->check(CLI::NonNegativeNumber);
  return *this;
}

Option& Option::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Option& Option::with_default() {
  option_->capture_default_str();
  return *this;
}

Subcommand Subcommand::add_subcommand(const std::string& name, const std::string& description) {
  return Subcommand(app_->add_subcommand(name, description));
}

void Subcommand::require_subcommand() { app_->require_subcommand(1); }

bool Subcommand::has_subcommand() const { return !app_->get_subcommands().empty(); }

Option Subcommand::add_option(const std::string& name, std::string& value, const std::string& description) {
  return Option(app_->add_option(name, value, description));
}

Option Subcommand::add_option(const std::string& name, std::filesystem::path& value,
                              const std::string& description) {
  return Option(app_->add_option(name, value, description));
}

Option Subcommand::add_option(const std::string& name, int& value, const std::string& description) {
  return Option(app_->add_option(name, value, description));
}

Option Subcommand::add_option(const std::string& name, size_t& value, const std::string& description) {
  return Option(app_->add_option(name, value, description));
}

Option Subcommand::add_option(const std::string& name, double& value, const std::string& description) {
  return Option(app_->add_option(name, value, description));
}

Option Subcommand::add_option(const std::string& name, std::vector<std::string>& values,
                              const std::string& description) {
  return Option(app_->add_option(name, values, description));
}

Option Subcommand::add_option(const std::string& name, std::vector<int>& values,
                              const std::string& description) {
  return Option(app_->add_option(name, values, description));
}

void Subcommand::add_flag(const std::string& name, bool& value, const std::string& description) {
  app_->add_flag(name, value, description);
}

void Subcommand::callback(std::function<void()> chosen) { app_->callback(std::move(chosen)); }

void Subcommand::fail_required(const std::string& what) { throw CLI::RequiredError(what); }

int run_subcommands(const std::string& name, const std::string& description,
                    const std::vector<AddSubcommand>& subcommands, int argc, const char* const* argv) {
  CLI::App app(description, name);
  app.require_subcommand(1);
  Action action;
  for (const AddSubcommand add : subcommands) add(Subcommand(&app), action);
  CLI11_PARSE(app, argc, argv);
  return run_main(name.c_str(), action);
}

}  // namespace lockstep::tools
