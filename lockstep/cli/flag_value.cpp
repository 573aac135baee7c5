#include "lockstep/cli/flag_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <sstream>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/shell.h"
#include "lockstep/cli/nearest.h"

namespace lockstep {
namespace {

template <class... T>
struct Overloaded : T... {
  using T::operator()...;
};
template <class... T>
Overloaded(T...) -> Overloaded<T...>;

/// As Python reads numbers: a '+' may stand before them.
std::string_view without_plus(std::string_view text) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-' && text[1] != '+') text.remove_prefix(1);
  return text;
}

template <class Number>
std::errc parse(std::string_view text, Number& value) {
  text = without_plus(text);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return error;
  return end == text.data() + text.size() ? std::errc() : std::errc::invalid_argument;
}

[[noreturn]] void refuse(std::string_view source, std::string_view text, std::string_view expected) {
  throw ValueError(fmt::format("{}: expected {}", said_value(source, text), expected));
}

/// Numbers without the zeros that fmt would give them: "1", "0.5", "10000000".
std::string plain(double number) {
  constexpr double kMostWhole = 1e15;
  if (std::abs(number) < kMostWhole && number == std::trunc(number))
    return std::to_string(static_cast<int64_t>(number));
  std::ostringstream text;
  text << number;
  return text.str();
}

std::string expected_by(const FlagCheck& check) {
  if (!check.expected.empty()) return std::string(check.expected);
  if (!check.choices.empty()) return one_of(split_words(check.choices));
  return fmt::format("a number from {} to {}", plain(check.least), plain(check.most));
}

void check_text(const FlagCheck& check, std::string_view source, const std::string& text) {
  if (!check.choices.empty() && !(text.empty() && check.may_be_empty)) {
    const auto choices = split_words(check.choices);
    if (std::find(choices.begin(), choices.end(), text) == choices.end())
      refuse(source, text, expected_by(check));
  }
  if (!check.is_of_numbers()) return;
  double value = 0;
  // "inf" is a number that no check of ours means.
  const bool is_number = parse(text, value) == std::errc() && std::isfinite(value);
  if (!is_number || value < check.least || value > check.most || (check.is_open && value == check.least))
    refuse(source, text, expected_by(check));
}

/// What errors ask for where a check has nothing to say about it.
template <class Number>
std::string expected_number(std::errc error) {
  if constexpr (std::is_floating_point_v<Number>) {
    return "a number";
  } else if (error == std::errc::result_out_of_range) {
    return fmt::format("a whole number of at most {}", std::numeric_limits<Number>::max());
  } else {
    return "a whole number";
  }
}

template <class Number>
Number parse_number(std::string_view source, const std::string& text) {
  Number value{};
  std::errc error = parse(text, value);
  if constexpr (std::is_floating_point_v<Number>) {
    if (std::isnan(value)) error = std::errc::invalid_argument;
  }
  if (error != std::errc()) refuse(source, text, expected_number<Number>(error));
  return value;
}

/// Without the '=' of a variable.
std::string plain_name(std::string_view source) {
  if (source.ends_with('=')) source.remove_suffix(1);
  return std::string(source);
}

bool truth_of(std::string_view source, const std::string& text) {
  const auto truth = truth_in(text);
  if (!truth) refuse(source, text, "true or false");
  return *truth;
}

}  // namespace

std::string said_value(std::string_view source, std::string_view text) {
  return fmt::format("{}{}{}", source, source.ends_with('=') ? "" : " ", quoted_if_empty(text));
}

std::optional<bool> truth_in(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto is_one_of = [&](std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), lower) != words.end();
  };
  if (is_one_of({"true", "yes", "t", "y", "1"})) return true;
  if (is_one_of({"false", "no", "f", "n", "0"})) return false;
  return std::nullopt;
}

void set_flag(const FlagTarget& target, std::string_view source, const std::vector<std::string>& texts,
              const FlagCheck& check) {
  for (const std::string& text : texts) check_text(check, source, text);
  const std::string last = texts.empty() ? std::string() : texts.back();
  const auto set_number = [&](auto& number) {
    number = parse_number<std::remove_reference_t<decltype(number)>>(source, last);
  };
  const auto set_optional = [&](auto& number) {
    number = parse_number<typename std::remove_reference_t<decltype(number)>::value_type>(source, last);
  };
  std::visit(Overloaded{[](std::monostate) {},  //
                        [&](bool* value) { *value = texts.empty() || truth_of(source, last); },
                        [&](int* value) { set_number(*value); },      //
                        [&](int64_t* value) { set_number(*value); },  //
                        [&](size_t* value) { set_number(*value); },   //
                        [&](double* value) { set_number(*value); },   //
                        [&](std::string* value) { *value = last; },   //
                        [&](std::filesystem::path* value) { *value = last; },
                        [&](std::optional<size_t>* value) { set_optional(*value); },
                        [&](std::optional<int64_t>* value) { set_optional(*value); },
                        [&](std::optional<double>* value) { set_optional(*value); },
                        [&](std::vector<std::string>* values) { *values = texts; },
                        [&](std::vector<int>* values) {
                          std::vector<int> numbers;
                          numbers.reserve(texts.size());
                          for (const std::string& text : texts)
                            numbers.push_back(parse_number<int>(source, text));
                          *values = std::move(numbers);
                        },
                        [&](const TakeText& take) { take(plain_name(source), last); }},
             target);
}

std::string describe_value(const FlagTarget& target) {
  const auto joined = [](const auto& values) {
    std::string list;
    for (const auto& value : values) list += fmt::format("{}{}", list.empty() ? "" : ",", value);
    return list;
  };
  const auto of_optional = [](const auto& value) { return value ? plain(static_cast<double>(*value)) : ""; };
  return std::visit(
      Overloaded{[](std::monostate) { return std::string(); },
                 [](const bool* value) { return std::string(*value ? "true" : "false"); },
                 [](const int* value) { return std::to_string(*value); },
                 [](const int64_t* value) { return std::to_string(*value); },
                 [](const size_t* value) { return std::to_string(*value); },
                 [](const double* value) { return plain(*value); },
                 [](const std::string* value) { return *value; },
                 [](const std::filesystem::path* value) { return value->string(); },
                 [&](const std::optional<size_t>* value) { return std::string(of_optional(*value)); },
                 [&](const std::optional<int64_t>* value) { return std::string(of_optional(*value)); },
                 [&](const std::optional<double>* value) { return std::string(of_optional(*value)); },
                 [&](const std::vector<std::string>* values) { return joined(*values); },
                 [&](const std::vector<int>* values) { return joined(*values); },
                 [](const TakeText&) { return std::string(); }},
      target);
}

bool is_switch(const FlagTarget& target) { return std::holds_alternative<bool*>(target); }

bool is_list(const FlagTarget& target) {
  return std::holds_alternative<std::vector<std::string>*>(target) ||
         std::holds_alternative<std::vector<int>*>(target);
}

std::string_view value_name(const FlagTarget& target) {
  const auto name = Overloaded{[](const std::string*) { return "TEXT"; },
                               [](const std::filesystem::path*) { return "FILE"; },
                               [](const double*) { return "X"; },
                               [](const std::optional<double>*) { return "X"; },
                               [](const std::vector<std::string>*) { return "LIST"; },
                               [](const std::vector<int>*) { return "LIST"; },
                               [](const TakeText&) { return "TEXT"; },
                               [](std::monostate) { return "TEXT"; },
                               [](const auto*) { return "N"; }};
  return std::visit(name, target);
}

std::vector<std::string> split_words(std::string_view words) {
  std::vector<std::string> list;
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    if (end > 0) list.emplace_back(words.substr(0, end));
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return list;
}

}  // namespace lockstep
