// Errors about flags. A flag in their text that no table has does not compile. Sources include this header, headers do not: it
// brings fmt.
#pragma once

#include <fmt/format.h>

#include <array>
#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/zoo/tasks/recipe_flags.h"

namespace lockstep::tasks {

/// Names of the flags of TrainingArguments, as members.
inline constexpr auto kTrainingFlags = std::to_array<std::string_view>({
#define LOCKSTEP_ARGUMENT(type, name, preset, preset_text, ok, expected, word, help) #name,
#include "lockstep/trainer/training_arguments.inc"
});

namespace flag_names {

constexpr std::string_view name_of_row(std::string_view name) { return name; }
template <class Values>
constexpr std::string_view name_of_row(const Flag<Values>& row) {
  return row.name;
}
template <class Values>
constexpr std::string_view name_of_row(const RecipeFlag<Values>& row) {
  return row.flag.name;
}

constexpr bool is_same_flag(std::string_view one, std::string_view other) {
  const auto plain = [](char c) { return c == '_' ? '-' : c; };
  if (one.size() != other.size()) return false;
  for (size_t i = 0; i < one.size(); ++i) {
    if (plain(one[i]) != plain(other[i])) return false;
  }
  return true;
}

constexpr bool is_in_flag(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; }

/// What follows the next "--" in `text`, behind which `text` begins afterwards; empty: there is none.
constexpr std::string_view next_flag(std::string_view& text) {
  while (true) {
    const size_t dashes = text.find("--");
    if (dashes == text.npos) return {};
    text.remove_prefix(dashes + 2);
    size_t size = 0;
    while (size < text.size() && is_in_flag(text[size])) ++size;
    const std::string_view name = text.substr(0, size);
    text.remove_prefix(size);
    if (size > 0) return name;
  }
}

}  // namespace flag_names

/// Errors of a program whose flags are in these tables: arrays of Flag, of RecipeFlag, or of names.
///
///     using Errors = FlagErrors<kFlags, kTrainingFlags>;
///     if (depth < 1) Errors::refuse("--depth is {}; expected 1 or more", depth);
template <const auto&... kTables>
class FlagErrors {
 public:
  /// A format string as fmt's.
  template <class... Args>
  struct Format {
    template <class Text>
    requires std::convertible_to<const Text&, std::string_view>
    consteval Format(const Text& from) : text(from) {  // NOLINT(google-explicit-constructor)
      std::string_view left = from;
      for (auto name = flag_names::next_flag(left); !name.empty(); name = flag_names::next_flag(left)) {
        if (!is_known(name)) throw "no table has a flag of this name";
      }
    }
    fmt::format_string<Args...> text;
  };

  /// The text of a part of an error, or of a warning.
  template <class... Args>
  static std::string format(Format<std::type_identity_t<Args>...> format, Args&&... args) {
    return fmt::format(format.text, std::forward<Args>(args)...);
  }

  /// Throws ValueError.
  template <class... Args>
  [[noreturn]] static void refuse(Format<std::type_identity_t<Args>...> format, Args&&... args) {
    throw ValueError(fmt::format(format.text, std::forward<Args>(args)...));
  }

  /// Whether a table has each of `names`: of a list that other sources name, which do not see the tables.
  static consteval bool has_all(const auto& names) {
    for (const std::string_view name : names) {
      if (!is_known(name)) return false;
    }
    return true;
  }

  /// "--name", which a table has.
  class Name {
   public:
    consteval Name(const char* flag) : flag_(flag) {  // NOLINT(google-explicit-constructor)
      if (!flag_.starts_with("--") || !is_known(flag_.substr(2))) throw "no table has a flag of this name";
    }
    constexpr operator std::string_view() const { return flag_; }  // NOLINT(google-explicit-constructor)

   private:
    std::string_view flag_;
  };

 private:
  static consteval bool is_known(std::string_view name) { return (has(kTables, name) || ...); }
  static consteval bool has(const auto& table, std::string_view name) {
    for (const auto& row : table) {
      if (flag_names::is_same_flag(flag_names::name_of_row(row), name)) return true;
    }
    return false;
  }
};

}  // namespace lockstep::tasks
