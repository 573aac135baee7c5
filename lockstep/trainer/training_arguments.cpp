#include "lockstep/trainer/training_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <type_traits>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/shell.h"
#include "lockstep/checkpoint/run_record.h"
#include "lockstep/cli/flag_value.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/tracking/report_to.h"
#include "lockstep/tracking/run_id.h"
#include "lockstep/trainer/arguments/lr_scheduler_kwargs.h"
#include "lockstep/trainer/arguments/training_arguments_table.h"

namespace lockstep {
namespace {

bool is_share_or_number(double value) { return value > 0 && (value <= 1 || value == std::floor(value)); }

bool is_share_or_steps(double value) { return value >= 0 && (value < 1 || value == std::floor(value)); }

bool is_record_kinds(const std::string& list) {
  try {
    checkpoint::parse_record_kinds(list);
    return true;
  } catch (const ValueError&) {
    return false;
  }
}

bool is_choice(const std::string& value, std::string_view choices) {
  const auto all = choices_in(choices);
  return std::find(all.begin(), all.end(), value) != all.end();
}

template <class T>
std::string format_value(const T& value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return fmt::format("{}", value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return std::string(quoted_if_empty(value));
  } else if constexpr (std::is_same_v<T, std::chrono::seconds>) {
    return fmt::format("{}", value.count());
  } else if constexpr (std::is_same_v<T, std::optional<uint64_t>>) {
    return value ? fmt::format("{}", *value) : "none";
  } else {
    return "what it is";  // of the other types every value is allowed
  }
}

template <class T>
bool is_finite(const T& value) {
  if constexpr (std::is_floating_point_v<T>) return std::isfinite(value);
  return true;
}

void check_fields(const TrainingArguments& a){
#define LOCKSTEP_ARGUMENT(type, name, preset, preset_text, ok, expected, word, help)                         \
  {                                                                                                          \
    [[maybe_unused]] const auto& value = a.name;                                                             \
    [[maybe_unused]] constexpr std::string_view choices = expected;                                          \
    if (!is_finite(value) || !(ok)) {                                                                        \
      throw ValueError(                                                                                      \
          fmt::format("{} is {}; it must be {}", #name, format_value(a.name), describe_expected(expected))); \
    }                                                                                                        \
  }
#include "lockstep/trainer/training_arguments.inc"
}

/// "a=1, b=2" as pairs.
std::vector<std::pair<std::string, std::string>> read_pairs(std::string text) {
  std::erase(text, ' ');
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string pair = text.substr(at, end - at);
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw ValueError(
          fmt::format("optim_args is \"{}\"; it must be NAME=VALUE, or several with commas between", text));
    }
    pairs.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
    at = end + 1;
  }
  return pairs;
}

double read_number(const std::string& name, const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const bool is_number = std::from_chars(text.data(), end, value).ptr == end && !text.empty();
  if (!is_number || !std::isfinite(value) || value < 0) {
    throw ValueError(fmt::format("optim_args: {} is {}; it must be 0 or more", name, text));
  }
  return value;
}

}  // namespace

void TrainingArguments::validate() const {
  check_fields(*this);
  optimizer_arguments();
  const char* const needs_best = load_best_model_at_end                ? "load_best_model_at_end"
                                 : save_strategy == SaveStrategy::BEST ? "save_strategy best"
                                                                       : nullptr;
  if (needs_best != nullptr && !evaluates()) {
    throw ValueError(
        fmt::format("{} needs evaluations during training; set eval_strategy to steps or epoch", needs_best));
  }
  if (load_best_model_at_end && save_strategy == SaveStrategy::NO) {
    throw ValueError("load_best_model_at_end loads a checkpoint, but save_strategy is no");
  }
  if (deterministic_world > 0 && !ddp_broadcast_buffers) {
    throw ValueError(
        "deterministic_world keeps the buffers of logical rank 0, but ddp_broadcast_buffers is false; leave it true");
  }
  if (reduces_lr_on_plateau()) {
    plateau_options();
    if (!evaluates()) {
      throw ValueError(
          "lr_scheduler_type is reduce_lr_on_plateau, which follows a metric of the evaluation; set "
          "eval_strategy to steps or epoch");
    }
  } else {
    LRScheduleOptions schedule{.type = scheduler_type(lr_scheduler_type)};
    read_lr_scheduler_kwargs(lr_scheduler_kwargs, schedule);
  }
}

int64_t TrainingArguments::resolved_warmup_steps(int64_t num_training_steps) const {
  if (warmup_steps >= 1) return static_cast<int64_t>(warmup_steps);
  return static_cast<int64_t>(std::ceil(static_cast<double>(num_training_steps) * warmup_steps));
}

ReduceLROnPlateauOptions TrainingArguments::plateau_options() const {
  ReduceLROnPlateauOptions options;
  read_lr_scheduler_kwargs(lr_scheduler_kwargs, options);
  return options;
}

LRScheduleOptions TrainingArguments::lr_schedule(int64_t num_training_steps) const {
  LRScheduleOptions schedule{.type = scheduler_type(lr_scheduler_type)};
  read_lr_scheduler_kwargs(lr_scheduler_kwargs, schedule);
  schedule.num_warmup_steps = resolved_warmup_steps(num_training_steps);
  schedule.num_training_steps = num_training_steps;
  try {
    check_lr_schedule(schedule, learning_rate);
  } catch (const ValueError& error) {
    throw ValueError(fmt::format("lr_scheduler_type is {}: {}; see --lr-scheduler-kwargs", lr_scheduler_type,
                                 error.what()));
  }
  return schedule;
}

int64_t TrainingArguments::resolved_logging_steps(int64_t num_training_steps) const {
  if (logging_steps >= 1) return static_cast<int64_t>(logging_steps);
  if (logging_steps == 0) return std::clamp<int64_t>(num_training_steps / 10, 1, 500);
  return static_cast<int64_t>(std::ceil(static_cast<double>(num_training_steps) * logging_steps));
}

int64_t TrainingArguments::resolved_eval_steps(int64_t num_training_steps) const {
  if (eval_steps >= 1) return static_cast<int64_t>(eval_steps);
  if (eval_steps == 0) return resolved_logging_steps(num_training_steps);
  return static_cast<int64_t>(std::ceil(static_cast<double>(num_training_steps) * eval_steps));
}

int64_t TrainingArguments::resolved_save_steps(int64_t num_training_steps) const {
  if (save_steps >= 1) return static_cast<int64_t>(save_steps);
  return static_cast<int64_t>(std::ceil(static_cast<double>(num_training_steps) * save_steps));
}

OptimizerArguments TrainingArguments::optimizer_arguments() const {
  OptimizerArguments options;
  for (const auto& [name, value] : read_pairs(optim_args)) {
    if (name == "weight_decay") {
      throw ValueError("optim_args has weight_decay, which is an argument of its own: set weight_decay");
    }
    if (optim != "sgd") {
      throw ValueError(fmt::format("optim_args has \"{}\", but {} takes none; sgd takes some", name, optim));
    }
    if (name == "momentum") {
      options.momentum = read_number(name, value);
    } else if (name == "dampening") {
      options.dampening = read_number(name, value);
    } else if (name == "nesterov") {
      options.nesterov = parse_bool("optim_args: " + name, value);
    } else {
      throw ValueError(
          fmt::format("optim_args has \"{}\"; sgd takes momentum, dampening and nesterov", name));
    }
  }
  if (options.nesterov && (options.momentum <= 0 || options.dampening != 0)) {
    throw ValueError("optim_args: nesterov needs a momentum above 0 and no dampening");
  }
  return options;
}

std::optional<std::chrono::seconds> TrainingArguments::time_limit() const { return parse_duration(max_time); }

std::string TrainingArguments::best_metric() const {
  if (metric_for_best_model.empty()) return "eval_loss";
  return metric_for_best_model.starts_with("eval_") ? metric_for_best_model : "eval_" + metric_for_best_model;
}

bool TrainingArguments::best_metric_is_greatest() const {
  return greater_is_better.value_or(!best_metric().ends_with("loss"));
}

IntervalStrategy parse_interval_strategy(const std::string& flag, const std::string& text) {
  if (text == "no") return IntervalStrategy::NO;
  if (text == "steps") return IntervalStrategy::STEPS;
  if (text == "epoch") return IntervalStrategy::EPOCH;
  throw ValueError(fmt::format("{} is {}; it must be no, steps or epoch", flag, quoted_if_empty(text)));
}

const char* name_of(IntervalStrategy strategy) {
  switch (strategy) {
    case IntervalStrategy::NO:
      return "no";
    case IntervalStrategy::STEPS:
      return "steps";
    case IntervalStrategy::EPOCH:
      return "epoch";
  }
  return "unknown";
}

SaveStrategy parse_save_strategy(const std::string& flag, const std::string& text) {
  for (const auto strategy :
       {SaveStrategy::NO, SaveStrategy::STEPS, SaveStrategy::EPOCH, SaveStrategy::BEST}) {
    if (text == name_of(strategy)) return strategy;
  }
  throw ValueError(fmt::format("{} is {}; it must be no, steps, epoch or best", flag, quoted_if_empty(text)));
}

const char* name_of(SaveStrategy strategy) {
  switch (strategy) {
    case SaveStrategy::NO:
      return "no";
    case SaveStrategy::STEPS:
      return "steps";
    case SaveStrategy::EPOCH:
      return "epoch";
    case SaveStrategy::BEST:
      return "best";
  }
  return "unknown";
}

bool parse_bool(const std::string& name, const std::string& text) {
  const auto truth = truth_in(text);
  if (!truth)
    throw ValueError(fmt::format("{} is {}; it must be true or false", name, quoted_if_empty(text)));
  return *truth;
}

std::optional<std::chrono::seconds> parse_duration(std::string_view text) {
  std::vector<int64_t> parts;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    int64_t part = 0;
    const auto [stop, error] = std::from_chars(at, end, part);
    constexpr int64_t kMost = int64_t{1} << 40;  // so that the sum does not overflow
    if (error != std::errc() || part < 0 || part > kMost) return std::nullopt;
    parts.push_back(part);
    if (stop == end) break;
    if (*stop != ':') return std::nullopt;
    at = stop + 1;
  }
  if (parts.size() != 1 && parts.size() != 4) return std::nullopt;
  int64_t seconds = parts.back();
  if (parts.size() == 4) seconds += 60 * (parts[2] + 60 * (parts[1] + 24 * parts[0]));
  return seconds > 0 ? std::optional(std::chrono::seconds(seconds)) : std::nullopt;
}

int64_t limited_batches(double limit, int64_t batches) {
  if (limit > 1) return std::min(batches, static_cast<int64_t>(std::min(limit, 1e18)));
  const auto share = static_cast<int64_t>(limit * static_cast<double>(batches));
  return std::min(batches, std::max<int64_t>(share, 1));
}

}  // namespace lockstep
