#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/trainer/arguments/training_arguments_table.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {
namespace {

using nlohmann::json;

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

/// A text that is empty where transformers has None.
bool is_nullable(std::string_view name) { return name != "optim" && name != "lr_scheduler_type"; }

/// A text that is a JSON object in the file.
bool is_object(std::string_view name) { return name == "lr_scheduler_kwargs"; }

/// A text with commas that is a list in the file.
bool is_list(std::string_view name) { return name == "report_to" || name == "resume_anyway"; }

json split_list(std::string_view text) {
  json list = json::array();
  while (true) {
    const size_t comma = text.find(',');
    list.push_back(std::string(text.substr(0, comma)));
    if (comma == std::string_view::npos) return list;
    text.remove_prefix(comma + 1);
  }
}

/// A number that is written as null, so that transformers reads the file: it refuses others there.
bool is_none(std::string_view name, double value) {
  return (name == "eval_steps" && value == 0) || (name == "dataloader_prefetch_factor" && value == 2);
}

template <class T>
json to_value(std::string_view name, const T& value) {
  if constexpr (std::is_arithmetic_v<T>) {
    if (is_none(name, static_cast<double>(value))) return {};
  }
  if constexpr (is_optional<T>) {
    return value ? json(*value) : json();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (value.empty() && is_nullable(name)) return {};
    if (is_list(name) && value != "none" && value != "all") return split_list(value);
    const json object = is_object(name) ? parse_json(value) : json();
    return object.is_object() ? object : json(value);
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    return value.string();
  } else if constexpr (std::is_same_v<T, std::chrono::seconds>) {
    return value.count();
  } else if constexpr (std::is_enum_v<T>) {
    return name_of(value);
  } else if constexpr (std::is_same_v<T, double>) {
    // Python's fields of type float take and print whole numbers too: "logging_steps": 500.
    constexpr double kExact = 1e15;
    const bool is_whole = std::floor(value) == value && std::abs(value) < kExact;
    return is_whole ? json(static_cast<int64_t>(value)) : json(value);
  } else {
    return value;
  }
}

struct WrongType {
  const char* expected;
};

[[noreturn]] void refuse_type(const char* expected) { throw WrongType{expected}; }

template <class T>
void read_integer(const json& value, T& field) {
  // 500.0 will do for 500.
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<T>::max())) refuse_type("a smaller number");
    field = static_cast<T>(number);
    return;
  }
  const double number = value.is_number() ? value.get<double>() : 0.5;
  if (number != std::floor(number)) refuse_type("a whole number");
  if (std::is_unsigned_v<T> && number < 0) refuse_type("0 or more");
  constexpr double kExact = 9e15;
  if (std::abs(number) > kExact || std::abs(number) > static_cast<double>(std::numeric_limits<T>::max())) {
    refuse_type("a smaller number");
  }
  field = static_cast<T>(number);
}

template <class T>
void read_value(std::string_view name, const json& value, T& field) {
  if constexpr (is_optional<T>) {
    field = typename T::value_type();
    read_value(name, value, *field);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) refuse_type("true or false");
    field = value.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    read_integer(value, field);
  } else if constexpr (std::is_same_v<T, double>) {
    if (!value.is_number()) refuse_type("a number");
    field = value.get<double>();
  } else if constexpr (std::is_same_v<T, std::chrono::seconds>) {
    int64_t seconds = 0;
    read_integer(value, seconds);
    field = T(seconds);
  } else if (is_object(name) && value.is_object()) {
    if constexpr (std::is_same_v<T, std::string>) field = value.empty() ? "" : dump_json(value);
  } else if (is_list(name) && value.is_array()) {
    if constexpr (std::is_same_v<T, std::string>) {
      field.clear();
      for (const auto& each : value) {
        if (!each.is_string()) refuse_type("a list of texts");
        field += (field.empty() ? "" : ",") + each.get<std::string>();
      }
      if (field.empty() && name == "report_to") field = "none";
    }
  } else {
    if (!value.is_string()) refuse_type("a text");
    const auto text = value.get<std::string>();
    if constexpr (std::is_same_v<T, IntervalStrategy>) {
      field = parse_interval_strategy(std::string(name), text);
    } else if constexpr (std::is_same_v<T, SaveStrategy>) {
      field = parse_save_strategy(std::string(name), text);
    } else if constexpr (std::is_same_v<T, TrainSamplingStrategy>) {
      field = parse_train_sampling_strategy(std::string(name), text);
    } else {
      field = text;
    }
  }
}

/// null is the default.
template <class T>
void read_or_keep(std::string_view name, const json& value, T& field) {
  if (!value.is_null()) read_value(name, value, field);
}

using Reader = void (*)(const json&, TrainingArguments&);

const std::map<std::string, Reader, std::less<>>& readers() {
  static const std::map<std::string, Reader, std::less<>> all = {
#define LOCKSTEP_ARGUMENT(type, name, preset, preset_text, ok, expected, word, help) \
  {#name, [](const json& value, TrainingArguments& a) { read_or_keep(#name, value, a.name); }},
#include "lockstep/trainer/training_arguments.inc"
  };
  return all;
}

void refuse(const RefusedArgument& refused, const json& value) {
  const json harmless = parse_json(refused.harmless);
  if (std::find(harmless.begin(), harmless.end(), value) != harmless.end()) return;
  throw ValueError(
      fmt::format("{} is {}, which is not supported: {}", refused.name, dump_json(value), refused.reason));
}

[[noreturn]] void refuse_unknown(const std::string& name) {
  const std::string nearest = nearest_training_argument(name);
  throw ValueError(fmt::format("unknown argument {}{}", name,
                               nearest.empty() ? std::string() : fmt::format("; did you mean {}?", nearest)));
}

void read_field(const std::string& name, const json& value, TrainingArguments& arguments) {
  const auto reader = readers().find(name);
  if (reader != readers().end()) {
    try {
      return reader->second(value, arguments);
    } catch (const WrongType& error) {
      throw ValueError(fmt::format("{} is {}; expected {}", name, dump_json(value), error.expected));
    }
  }
  for (const auto& refused : refused_training_arguments()) {
    if (name == refused.name) return refuse(refused, value);
  }
  refuse_unknown(name);
}

}  // namespace

std::string to_json(const TrainingArguments& arguments) {
  std::string text = "{";
  const auto add = [&](const char* name, const json& value) {
    text += fmt::format("{}\n  \"{}\": {}", text.size() > 1 ? "," : "", name,
                        dump_json(value, {.replace_invalid_utf8 = true}));  // the name of a directory
  };
#define LOCKSTEP_ARGUMENT(type, name, preset, preset_text, ok, expected, word, help) \
  add(#name, to_value(#name, arguments.name));
#include "lockstep/trainer/training_arguments.inc"
  return text + "\n}";
}

TrainingArguments training_arguments_from_json(std::string_view text, const std::string& source) {
  size_t error_byte = 0;
  const json given = parse_json(text, &error_byte);
  if (given.is_discarded()) {
    throw ValueError(fmt::format("{}: byte {} is not JSON", source, error_byte));
  }
  if (!given.is_object())
    throw ValueError(source + ": expected a JSON object, {\"learning_rate\": 5e-05, ...}");
  TrainingArguments arguments;
  try {
    for (const auto& [name, value] : given.items()) read_field(name, value, arguments);
    arguments.validate();
  } catch (const ValueError& error) {
    throw ValueError(fmt::format("{}: {}", source, error.what()));
  }
  return arguments;
}

}  // namespace lockstep
