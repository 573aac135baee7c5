#include "lockstep/state/state_dict.h"

#include <fmt/format.h>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"

namespace lockstep {
namespace {

/// JSON has no numbers for these.
const char* name_of(double value) { return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"; }

template <class Map>
void add_prefixed(std::string_view prefix, const Map& from, Map& to) {
  for (const auto& [name, value] : from) to.insert_or_assign(fmt::format("{}.{}", prefix, name), value);
}

template <class Map>
Map select_part(std::string_view prefix, const Map& from) {
  const std::string start = std::string(prefix) + ".";
  Map part;
  for (auto it = from.lower_bound(start); it != from.end() && it->first.starts_with(start); ++it) {
    part.emplace(it->first.substr(start.size()), it->second);
  }
  return part;
}

}  // namespace

template <class T>
T StateDict::get(std::string_view who, const std::string& name) const {
  const auto found = scalars.find(name);
  if (found == scalars.end()) {
    throw ValueError(fmt::format("{}: the state has no \"{}\"; give what state_dict() returned", who, name));
  }
  if (const T* value = std::get_if<T>(&found->second)) return *value;
  if constexpr (std::is_same_v<T, double>) {
    if (const auto* value = std::get_if<int64_t>(&found->second)) return static_cast<double>(*value);
    if (const auto* text = std::get_if<std::string>(&found->second)) {
      for (const double value : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
        if (*text == name_of(value)) return value;
      }
    }
  }
  throw ValueError(fmt::format("{}: \"{}\" of the state is of another type than expected", who, name));
}

template bool StateDict::get<bool>(std::string_view, const std::string&) const;
template int64_t StateDict::get<int64_t>(std::string_view, const std::string&) const;
template double StateDict::get<double>(std::string_view, const std::string&) const;
template std::string StateDict::get<std::string>(std::string_view, const std::string&) const;

void StateDict::add(std::string_view prefix, const StateDict& other) {
  add_prefixed(prefix, other.tensors, tensors);
  add_prefixed(prefix, other.scalars, scalars);
}

StateDict StateDict::part(std::string_view prefix) const {
  return {select_part(prefix, tensors), select_part(prefix, scalars)};
}

std::string StateDict::scalars_to_json() const {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [name, scalar] : scalars) {
    const auto* number = std::get_if<double>(&scalar);
    if (number != nullptr && !std::isfinite(*number)) {
      object[name] = name_of(*number);
    } else {
      std::visit([&](const auto& value) { object[name] = value; }, scalar);
    }
  }
  return dump_json(object);
}

std::map<std::string, StateDict::Scalar> StateDict::scalars_from_json(std::string_view text) {
  const nlohmann::json object = parse_json(text);
  if (!object.is_object()) throw ValueError("the scalars of a state must be a JSON object");
  std::map<std::string, Scalar> scalars;
  for (const auto& [name, value] : object.items()) {
    if (value.is_boolean()) {
      scalars[name] = value.get<bool>();
    } else if (value.is_number_integer()) {
      scalars[name] = value.get<int64_t>();
    } else if (value.is_number()) {
      scalars[name] = value.get<double>();
    } else if (value.is_string()) {
      scalars[name] = value.get<std::string>();
    } else {
      throw ValueError(fmt::format("\"{}\" of a state is neither a number nor true, false or a text", name));
    }
  }
  return scalars;
}

}  // namespace lockstep
