// Words of the command line to texts by flag, by the table of flags, and texts to numbers.
#pragma once

#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::launcher {

/// `text` as a number of at least `least`. Throws ValueError naming the flag and what was expected.
template <typename Number>
Number parse_number(const std::string& flag, const std::string& text, Number least, const char* expected) {
  // Also refuses "inf" and "nan".
  constexpr Number most = std::numeric_limits<Number>::max();
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least && value <= most)) {
    throw ValueError("--" + flag + " " + text + ": expected " + expected);
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

  /// By the command line or the environment.
  bool given(std::string_view flag) const { return texts_.contains(std::string(flag)); }
  bool typed(std::string_view flag) const { return typed_.contains(std::string(flag)); }
  bool on(std::string_view flag) const { return given(flag); }  ///< for switches
  std::string text(std::string_view flag) const;
  const std::vector<std::string>& command() const { return command_; }  ///< target and its arguments

 private:
  void take(std::string_view flag, std::string text);
  size_t take_flag(const std::vector<std::string>& words, size_t at);
  void take_environment();

  std::map<std::string, std::string> texts_;
  std::map<std::string, bool> typed_;
  std::vector<std::string> command_;
};

}  // namespace lockstep::launcher
