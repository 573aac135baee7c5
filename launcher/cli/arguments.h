// Words of the command line to texts by flag, by the table of flags, and texts to numbers. A parser of lockrun's own,
// because it must start at once: 0.1 ms instead of CLI11's 1.5 to 6 ms (docs/architecture/flag.md).
#pragma once

#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/cli/flags.h"
#include "lockstep/base/error.h"
#include "lockstep/base/given_flags.h"
#include "lockstep/cli/flag_value.h"

namespace lockstep::launcher {

/// Throws ValueError "--seed x: expected ...". `source` as in said_value().
[[noreturn]] void refuse_value(std::string_view source, std::string_view text, std::string_view expected);

/// The text of a file that a flag names. Throws FileError that begins with `said`, the flag and its value.
std::string read_given_file(const std::string& said, const std::string& path);

/// `text` as a number of at least `least`. Throws ValueError naming the flag, its value and what was expected. `whole`: the
/// value, if `text` is a part of it.
template <typename Number>
Number parse_number(std::string_view source, const std::string& text, Number least, const char* expected,
                    std::string_view whole = {}) {
  // Also refuses "inf" and "nan".
  constexpr Number most = std::numeric_limits<Number>::max();
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least && value <= most)) {
    refuse_value(source, whole.empty() ? std::string_view(text) : whole, expected);
  }
  return value;
}

/// What was typed, with PET_* variables and the table's defaults behind it.
class Arguments {
 public:
  /// Parses argv[1..]: flags in both spellings (--a-b, --a_b), with the value in the same word or the next
  /// one, up to the first word that is no flag: the target, whose arguments are its own. Throws ValueError
  /// with one line that names the flag and what to do.
  Arguments(int argc, const char* const* argv);

  /// Sets the members of the table's rows: what was given, else the defaults. Throws ValueError.
  void fill(Options& options) const;

  /// By the command line or the environment.
  bool given(FlagName flag) const { return said_[flag.index()].text.has_value(); }
  bool typed(FlagName flag) const { return !said_[flag.index()].name.empty(); }  ///< on the command line
  bool on(FlagName flag) const { return given(flag); }                           ///< for switches
  std::string text(FlagName flag) const;
  /// The flag as the user gave it, for errors: "--nproc_per_node", "-r", "environment variable PET_TEE="; --name where
  /// it was not given.
  std::string source(FlagName flag) const;
  /// That without the '=' of a variable, for errors that name no value.
  std::string name(FlagName flag) const;
  /// All flags that were given, for errors that are found later.
  std::vector<GivenFlag> all_given() const;
  const std::vector<std::string>& command() const { return command_; }  ///< target and its arguments

 private:
  struct Said {
    std::optional<std::string> text{};
    std::string name{};      // as it was typed; empty: not typed
    std::string variable{};  // that gave the text
  };
  size_t take_flag(const std::vector<std::string>& words, size_t at);
  void take_environment();

  std::array<Said, kFlags.size()> said_{};
  std::vector<std::string> command_;
};

}  // namespace lockstep::launcher
