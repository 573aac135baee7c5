#include "lockstep/trainer/lr_scheduler_kwargs.h"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"

namespace lockstep {
namespace {

RampType ramp_type(const std::string& name) {
  if (name == "linear") return RampType::linear;
  if (name == "cosine") return RampType::cosine;
  if (name == "1-sqrt") return RampType::one_minus_sqrt;
  throw ValueError(
      fmt::format("\"{}\" is no type of warm-up or decay; it may be linear, cosine or 1-sqrt", name));
}

using Setter = std::function<void(LRScheduleOptions&, const nlohmann::json&)>;

/// Of a number, whole or not as the field is.
template <class Field>
Setter number(Field LRScheduleOptions::*field) {
  return [field](LRScheduleOptions& options, const nlohmann::json& value) {
    if constexpr (std::is_same_v<Field, int64_t> || std::is_same_v<Field, std::optional<int64_t>>) {
      if (!value.is_number_integer()) throw ValueError("expected a whole number");
      options.*field = value.get<int64_t>();
    } else {
      if (!value.is_number()) throw ValueError("expected a number");
      options.*field = value.get<double>();
    }
  };
}

const std::map<std::string, Setter>& setters() {
  using O = LRScheduleOptions;
  static const std::map<std::string, Setter> all = {
      {"num_cycles", number(&O::num_cycles)},
      {"power", number(&O::power)},
      {"lr_end", number(&O::lr_end)},
      {"timescale", number(&O::timescale)},
      {"min_lr", number(&O::min_lr)},
      {"min_lr_rate", number(&O::min_lr_rate)},
      {"warmup_lr_rate", number(&O::warmup_lr_rate)},
      {"num_decay_steps", number(&O::num_decay_steps)},
      {"num_stable_steps", number(&O::num_stable_steps)},
      {"min_lr_ratio", number(&O::min_lr_ratio)},
      {"step_size", number(&O::step_size)},
      {"gamma", number(&O::gamma)},
      {"warmup_type", [](O& options, const auto& value) { options.warmup_type = ramp_type(value); }},
      {"decay_type", [](O& options, const auto& value) { options.decay_type = ramp_type(value); }},
      {"milestones",
       [](O& options, const auto& value) {
         options.milestones = value.template get<std::vector<int64_t>>();
       }},
  };
  return all;
}

}  // namespace

void read_lr_scheduler_kwargs(const std::string& json, LRScheduleOptions& options) {
  if (json.empty()) return;
  const nlohmann::json given = parse_json(json);
  if (!given.is_object()) {
    throw ValueError(
        fmt::format("lr_scheduler_kwargs is {}; it must be a JSON object, such as "
                    "{{\"num_cycles\": 2}}",
                    json));
  }
  for (const auto& [name, value] : given.items()) {
    const auto setter = setters().find(name);
    if (setter == setters().end()) {
      std::string known;
      for (const auto& each : setters()) known += (known.empty() ? "" : ", ") + each.first;
      throw ValueError(fmt::format("lr_scheduler_kwargs: no schedule has \"{}\"; known are {}", name, known));
    }
    try {
      setter->second(options, value);
    } catch (const std::exception& error) {
      throw ValueError(
          fmt::format("lr_scheduler_kwargs: \"{}\" is {}: {}", name, dump_json(value), error.what()));
    }
  }
}

}  // namespace lockstep
