#include "lockstep/optim/lr_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using enum SchedulerType;

constexpr std::array<std::pair<SchedulerType, const char*>, 12> kNames = {{
    {linear, "linear"},
    {cosine, "cosine"},
    {cosine_with_restarts, "cosine_with_restarts"},
    {polynomial, "polynomial"},
    {constant, "constant"},
    {constant_with_warmup, "constant_with_warmup"},
    {inverse_sqrt, "inverse_sqrt"},
    {cosine_with_min_lr, "cosine_with_min_lr"},
    {cosine_warmup_with_min_lr, "cosine_warmup_with_min_lr"},
    {warmup_stable_decay, "warmup_stable_decay"},
    {step, "step"},
    {multi_step, "multi_step"},
}};

/// part / whole, where a whole of nothing counts as one step.
double share(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
}

/// From 1 to 0 over `cycles` = 0.5, back again over 1.
double wave(double cycles, double progress) {
  return 0.5 * (1 + std::cos(2 * std::numbers::pi * cycles * progress));
}

/// From 0 to 1.
double rise(RampType type, double progress) {
  switch (type) {
    case RampType::linear:
      return progress;
    case RampType::cosine:
      return 0.5 * (1 - std::cos(std::numbers::pi * progress));
    case RampType::one_minus_sqrt:
      return 1 - std::sqrt(1 - progress);
  }
  return progress;
}

/// From 1 to 0.
double fall(RampType type, double progress, double cycles) {
  switch (type) {
    case RampType::linear:
      return 1 - progress;
    case RampType::cosine:
      return wave(cycles, progress);
    case RampType::one_minus_sqrt:
      return 1 - std::sqrt(progress);
  }
  return progress;
}

double above(double floor, double factor) { return std::max(0.0, factor * (1 - floor) + floor); }

double floor_rate(const LRScheduleOptions& options, double lr) {
  return options.min_lr ? *options.min_lr / lr : options.min_lr_rate.value_or(0);
}

int64_t timescale_of(const LRScheduleOptions& options) {
  constexpr int64_t kWithoutWarmup = 10000;
  return options.timescale.value_or(options.num_warmup_steps > 0 ? options.num_warmup_steps : kWithoutWarmup);
}

int64_t stable_steps(const LRScheduleOptions& options) {
  return options.num_stable_steps.value_or(options.num_training_steps - options.num_warmup_steps -
                                           options.num_decay_steps);
}

double stable_then_decay(const LRScheduleOptions& options, int64_t done) {
  if (done < options.num_warmup_steps) {
    return above(options.min_lr_ratio, rise(options.warmup_type, share(done, options.num_warmup_steps)));
  }
  const int64_t decaying = done - options.num_warmup_steps - stable_steps(options);
  if (decaying < 0) return 1;
  if (decaying >= options.num_decay_steps) return options.min_lr_ratio;
  return above(options.min_lr_ratio, fall(options.decay_type, share(decaying, options.num_decay_steps),
                                          options.num_cycles.value_or(0.5)));
}

/// The warm-up does not begin at zero, and the first step after it is a part of the fall already.
double cosine_after_early_warmup(const LRScheduleOptions& options, double floor, int64_t done) {
  const int64_t warmup = options.num_warmup_steps;
  if (done >= warmup) {
    return above(floor, wave(options.num_cycles.value_or(0.5),
                             share(done - warmup + 1, options.num_training_steps - warmup)));
  }
  if (!options.warmup_lr_rate) return share(done + 1, warmup);
  return *options.warmup_lr_rate + (1 - *options.warmup_lr_rate) * share(done, warmup - 1);
}

/// After the warm-up, by `progress` from 0 to 1 and further.
double factor_after_warmup(const LRScheduleOptions& options, double lr, int64_t done, double progress) {
  switch (options.type) {
    case linear:
      return std::max(0.0, share(options.num_training_steps - done,
                                 options.num_training_steps - options.num_warmup_steps));
    case cosine:
      return std::max(0.0, wave(options.num_cycles.value_or(0.5), progress));
    case cosine_with_restarts:
      return progress >= 1 ? 0 : wave(0.5, std::fmod(options.num_cycles.value_or(1) * progress, 1.0));
    case cosine_with_min_lr:
      return above(floor_rate(options, lr), wave(options.num_cycles.value_or(0.5), progress));
    case polynomial: {
      const double end = options.lr_end / lr;
      if (done > options.num_training_steps || progress >= 1) return end;
      return end + (1 - end) * std::pow(1 - progress, options.power);
    }
    case inverse_sqrt: {
      const int64_t timescale = timescale_of(options);
      return std::sqrt(static_cast<double>(timescale) /
                       static_cast<double>(done - options.num_warmup_steps + timescale));
    }
    default:
      return 1;
  }
}

void need(bool is_so, const LRScheduleOptions& options, const std::string& what) {
  if (!is_so)
    throw ValueError(fmt::format("the learning-rate schedule {} needs {}", name_of(options.type), what));
}

}  // namespace

SchedulerType scheduler_type(const std::string& name) {
  std::string known;
  for (const auto& [type, its_name] : kNames) {
    if (name == its_name) return type;
    known += (known.empty() ? "" : type == kNames.back().first ? " or " : ", ") + std::string(its_name);
  }
  if (name == "reduce_lr_on_plateau") {
    throw ValueError(
        "\"reduce_lr_on_plateau\" follows a metric and no steps: use lockstep::ReduceLROnPlateau");
  }
  throw ValueError(fmt::format(
      "unknown lr scheduler type \"{}\", expected {}, or for the Trainer reduce_lr_on_plateau", name, known));
}

std::string name_of(SchedulerType type) {
  for (const auto& [each, name] : kNames) {
    if (each == type) return name;
  }
  return "unknown";
}

void check_lr_schedule(const LRScheduleOptions& options, double lr) {
  need(options.num_warmup_steps >= 0, options, "num_warmup_steps of 0 or more");
  switch (options.type) {
    case polynomial:
      need(lr > options.lr_end, options, "an lr_end below the initial learning rate");
      return;
    case inverse_sqrt:
      need(timescale_of(options) > 0, options, "a timescale of 1 or more");
      return;
    case cosine_with_min_lr:
    case cosine_warmup_with_min_lr:
      need(options.min_lr.has_value() != options.min_lr_rate.has_value(), options,
           "either min_lr or min_lr_rate");
      return;
    case warmup_stable_decay:
      need(options.num_decay_steps > 0, options, "num_decay_steps of 1 or more");
      need(stable_steps(options) >= 0, options,
           "num_training_steps that the steps of warm-up and decay fit into, or num_stable_steps");
      return;
    case step:
      need(options.step_size > 0, options, "a step_size of 1 or more");
      return;
    case multi_step:
      need(!options.milestones.empty(), options, "milestones");
      return;
    default:
      return;
  }
}

double lr_factor(const LRScheduleOptions& options, double lr, int64_t done) {
  switch (options.type) {
    case constant:
      return 1;
    case step: {
      const int64_t periods = done / options.step_size;
      return std::pow(options.gamma, static_cast<double>(periods));
    }
    case multi_step:
      return std::pow(options.gamma, static_cast<double>(std::count_if(
                                         options.milestones.begin(), options.milestones.end(),
                                         [&](int64_t milestone) { return milestone <= done; })));
    case warmup_stable_decay:
      return stable_then_decay(options, done);
    case cosine_warmup_with_min_lr:
      return cosine_after_early_warmup(options, floor_rate(options, lr), done);
    default:
      break;
  }
  const int64_t warmup = options.num_warmup_steps;
  if (done < warmup) return share(done, warmup);
  return factor_after_warmup(options, lr, done, share(done - warmup, options.num_training_steps - warmup));
}

}  // namespace lockstep
