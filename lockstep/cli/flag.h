// A row of a program's table of flags: its name, the member that it sets, its default, its check, its words and its
// environment variable. The parser, --help, the manual, the completions and the errors are made from these rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep {

/// What a flag's value must be besides of its type. As a constant in a table it costs nothing.
struct FlagCheck {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool is_open = false;         ///< `least` itself is too small
  std::string_view expected{};  ///< what errors ask for; empty: made from the other members
  std::string_view choices{};   ///< the words that are allowed, with spaces between; empty: any
  bool may_be_empty = false;    ///< "" is allowed beside the choices

  static constexpr FlagCheck at_least(double least, std::string_view expected = "0 or more") {
    return {.least = least, .expected = expected};
  }
  static constexpr FlagCheck above(double least, std::string_view expected = "a number above 0") {
    return {.least = least, .is_open = true, .expected = expected};
  }
  static constexpr FlagCheck between(double least, double most) { return {.least = least, .most = most}; }
  static constexpr FlagCheck one_of(std::string_view choices) { return {.choices = choices}; }

  /// Whether a number is asked for, whatever the type of the member.
  constexpr bool is_of_numbers() const {
    return least != -std::numeric_limits<double>::infinity() ||
           most != std::numeric_limits<double>::infinity();
  }
};

/// The types that a flag can set. A bool is set by the flag alone or by a word of truth_in(); a vector takes several words.
template <template <class...> class Of>
using OfFlagTypes =
    Of<bool, int, int64_t, size_t, double, std::string, std::filesystem::path, std::optional<size_t>,
       std::optional<int64_t>, std::optional<double>, std::vector<std::string>, std::vector<int>>;

/// A function that takes a flag's text. It gets the flag too, as it was typed, for its errors; it may throw ValueError.
using TakeText = std::function<void(const std::string& flag, const std::string& text)>;

namespace detail {
template <class... T>
struct FlagPointers {
  using type = std::variant<std::monostate, T*..., TakeText>;
  template <class Values>
  using members = std::variant<std::monostate, T Values::*...>;
  template <class U>
  static constexpr bool contain = (std::is_same_v<U, T> || ...);
};
}  // namespace detail

/// Where a value goes: into a variable, into a function, or nowhere (the program asks for the text).
using FlagTarget = OfFlagTypes<detail::FlagPointers>::type;

/// A member of `Values` that a flag can set, or none.
template <class Values>
using FlagMember = OfFlagTypes<detail::FlagPointers>::members<Values>;

/// A type that a flag can set.
template <class T>
concept FlagType = OfFlagTypes<detail::FlagPointers>::contain<T>;

/// As a row's preset: the default is what the member holds before, and --help shows that.
inline constexpr std::string_view kHeldValue = "=";

/// A row of the table of a program whose flags set `Values`. Rows are written with designated initializers.
template <class Values>
struct Flag {
  std::string_view name;                    ///< "hang-timeout": without dashes, words joined by '-'
  FlagMember<Values> member{};              ///< what it sets; none: the program asks for its text
  FlagTarget (*target)(Values&) = nullptr;  ///< in place of a member: member_of(), taken_by()
  void (*on_given)(Values&) = nullptr;      ///< called where it is given, after its value was taken
  std::string_view preset{};         ///< default as text; empty: what the member holds, and none is shown
  std::string_view default_words{};  ///< what --help shows as the default, where that is no value
  FlagCheck check{};                 ///< what is allowed
  std::string_view value{};          ///< name of its value in --help; empty: by type, and none for a switch
  std::string_view group{};          ///< heading in --help
  std::string_view words{};          ///< what it is for
  std::string_view letters{};        ///< short form without its dash ("m", "np")
  std::string_view variable{};       ///< environment variable that sets the default
  bool is_required = false;          ///< there is no default
  bool is_place = false;             ///< it stands by its place, without a name: "RANKS"
  bool has_commas = false;           ///< a word may hold several values with commas between
};

/// Where `member` of `values` is; `values` must live as long as the result.
template <class Values>
FlagTarget flag_target(const FlagMember<Values>& member, Values& values) {
  return std::visit(
      [&](auto pointer) -> FlagTarget {
        if constexpr (std::is_same_v<decltype(pointer), std::monostate>) {
          return {};
        } else {
          return &(values.*pointer);
        }
      },
      member);
}

/// As a row's target: a member of a member, member_of<&Arguments::training, &TrainingArguments::seed>.
template <auto kOuter, auto kInner, class Values>
FlagTarget member_of(Values& values) {
  return &((values.*kOuter).*kInner);
}

/// As a row's target: a function that reads the text, void (Values&, const std::string& flag, const std::string& text).
/// It gets the flag as it was typed, and may throw ValueError.
template <auto kTake, class Values>
FlagTarget taken_by(Values& values) {
  return TakeText([&values](const std::string& flag, const std::string& text) { kTake(values, flag, text); });
}

/// Where the value of `row` goes; `values` must live as long as the result.
template <class Values>
FlagTarget flag_target(const Flag<Values>& row, Values& values) {
  return row.target == nullptr ? flag_target(row.member, values) : row.target(values);
}

}  // namespace lockstep
