#include "lockstep/trainer/arguments/lr_scheduler_kwargs.h"

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

template <class Options>
using Setters = std::map<std::string, std::function<void(Options&, const nlohmann::json&)>>;

/// Returns the setter of a number, whole or not as the field is.
template <class Options, class Field>
auto number(Field Options::*field) {
  return [field](Options& options, const nlohmann::json& value) {
    if constexpr (std::is_same_v<Field, int64_t> || std::is_same_v<Field, std::optional<int64_t>>) {
      if (!value.is_number_integer()) throw ValueError("expected a whole number");
      options.*field = value.get<int64_t>();
    } else {
      if (!value.is_number()) throw ValueError("expected a number");
      options.*field = value.get<double>();
    }
  };
}

/// Returns the setter of a field that one of two words names.
template <class Options, class Field>
auto choice(Field Options::*field, const char* first_name, Field first, const char* second_name,
            Field second) {
  return [=](Options& options, const nlohmann::json& value) {
    if (value != first_name && value != second_name) {
      throw ValueError(fmt::format("expected \"{}\" or \"{}\"", first_name, second_name));
    }
    options.*field = value == first_name ? first : second;
  };
}

const Setters<LRScheduleOptions>& setters(const LRScheduleOptions&) {
  using O = LRScheduleOptions;
  static const Setters<O> all = {
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

const Setters<ReduceLROnPlateauOptions>& setters(const ReduceLROnPlateauOptions&) {
  using O = ReduceLROnPlateauOptions;
  static const Setters<O> all = {
      {"mode", choice(&O::mode, "min", O::Mode::min, "max", O::Mode::max)},
      {"factor",
       [](O& options, const auto& value) {
         number (&O::factor)(options, value);
         if (options.factor >= 1) throw ValueError("expected less than 1");
       }},
      {"patience", number(&O::patience)},
      {"threshold", number(&O::threshold)},
      {"threshold_mode",
       choice(&O::threshold_mode, "rel", O::ThresholdMode::rel, "abs", O::ThresholdMode::abs)},
      {"cooldown", number(&O::cooldown)},
      {"min_lr", number(&O::min_lr)},
      {"eps", number(&O::eps)},
  };
  return all;
}

/// `owner`: who has these arguments, for errors.
template <class Options>
void read_object(const std::string& json, const char* owner, Options& options) {
  if (json.empty()) return;
  const nlohmann::json given = parse_json(json);
  if (!given.is_object()) {
    throw ValueError(
        fmt::format("lr_scheduler_kwargs is {}; it must be a JSON object, such as "
                    "{{\"num_cycles\": 2}}",
                    json));
  }
  const auto& known_setters = setters(options);
  for (const auto& [name, value] : given.items()) {
    const auto setter = known_setters.find(name);
    if (setter == known_setters.end()) {
      std::string known;
      for (const auto& each : known_setters) known += (known.empty() ? "" : ", ") + each.first;
      throw ValueError(fmt::format("lr_scheduler_kwargs: {} has \"{}\"; known are {}", owner, name, known));
    }
    try {
      setter->second(options, value);
    } catch (const std::exception& error) {
      throw ValueError(
          fmt::format("lr_scheduler_kwargs: \"{}\" is {}: {}", name, dump_json(value), error.what()));
    }
  }
}

}  // namespace

void read_lr_scheduler_kwargs(const std::string& json, LRScheduleOptions& options) {
  read_object(json, "no schedule", options);
}

void read_lr_scheduler_kwargs(const std::string& json, ReduceLROnPlateauOptions& options) {
  read_object(json, "reduce_lr_on_plateau never", options);
}

}  // namespace lockstep
