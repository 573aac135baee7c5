#include "lockstep/optim/lr_scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::vector<double> read_rates(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void set_rate(torch::optim::Optimizer& optimizer, size_t group, double rate) {
  optimizer.param_groups()[group].options().set_lr(rate);
}

void add_rates(StateDict& state, const char* name, const std::vector<double>& rates) {
  for (size_t g = 0; g < rates.size(); ++g) {
    state.scalars[fmt::format("{}.{}", name, g)] = rates[g];
  }
}

std::vector<double> rates_in(const StateDict& state, const char* who, const char* name, size_t groups) {
  const std::string extra = fmt::format("{}.{}", name, groups);
  if (state.scalars.contains(extra)) {
    throw ValueError(
        fmt::format("{}: the state is that of an optimizer with more than {} parameter groups", who, groups));
  }
  std::vector<double> rates;
  for (size_t g = 0; g < groups; ++g) {
    rates.push_back(state.get<double>(who, fmt::format("{}.{}", name, g)));
  }
  return rates;
}

double worst(ReduceLROnPlateauOptions::Mode mode) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return mode == ReduceLROnPlateauOptions::Mode::min ? kInfinity : -kInfinity;
}

}  // namespace

LRScheduler::LRScheduler(torch::optim::Optimizer& optimizer, LRScheduleOptions options)
    : optimizer_(optimizer),
      options_(std::move(options)),
      default_lr_(optimizer.defaults().get_lr()),
      base_lrs_(read_rates(optimizer)) {
  check_lr_schedule(options_, default_lr_);
  set_rates();
}

void LRScheduler::step() {
  ++last_epoch_;
  set_rates();
}

void LRScheduler::fail_step() {
  if (last_epoch_ == before_step_) return;
  last_epoch_ = before_step_;
  set_rates();
}

void LRScheduler::set_rates() {
  const double factor = lr_factor(options_, default_lr_, last_epoch_);
  for (size_t g = 0; g < base_lrs_.size(); ++g) set_rate(optimizer_, g, base_lrs_[g] * factor);
}

std::vector<double> LRScheduler::get_last_lr() const { return read_rates(optimizer_); }

StateDict LRScheduler::state_dict() const {
  StateDict state;
  state.scalars["last_epoch"] = last_epoch_;
  add_rates(state, "base_lrs", base_lrs_);
  return state;
}

void LRScheduler::load_state_dict(const StateDict& state) {
  const auto last_epoch = state.get<int64_t>("LRScheduler", "last_epoch");
  base_lrs_ = rates_in(state, "LRScheduler", "base_lrs", base_lrs_.size());
  last_epoch_ = last_epoch;
  set_rates();
}

ReduceLROnPlateau::ReduceLROnPlateau(torch::optim::Optimizer& optimizer, ReduceLROnPlateauOptions options)
    : optimizer_(optimizer), options_(options), counters_{.best = worst(options.mode)} {
  if (options_.factor >= 1) {
    throw ValueError(fmt::format("ReduceLROnPlateau: factor is {}; it must be below 1", options_.factor));
  }
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const bool is_relative = options_.threshold_mode == ReduceLROnPlateauOptions::ThresholdMode::rel;
  const double threshold = options_.threshold;
  if (options_.mode == ReduceLROnPlateauOptions::Mode::min) {
    return metric < (is_relative ? counters_.best * (1 - threshold) : counters_.best - threshold);
  }
  return metric > (is_relative ? counters_.best * (threshold + 1) : counters_.best + threshold);
}

void ReduceLROnPlateau::step(double metric) {
  if (!before_step_ && detail::StepUnderWay::current() != nullptr) {
    before_step_ = BeforeStep{.counters = counters_, .rates = read_rates(optimizer_)};
  }
  ++counters_.last_epoch;
  if (is_better(metric)) {
    counters_.best = metric;
    counters_.num_bad_epochs = 0;
  } else {
    ++counters_.num_bad_epochs;
  }
  if (counters_.cooldown_counter > 0) {
    --counters_.cooldown_counter;
    counters_.num_bad_epochs = 0;
  }
  if (counters_.num_bad_epochs <= options_.patience) return;
  reduce();
  counters_.cooldown_counter = options_.cooldown;
  counters_.num_bad_epochs = 0;
}

void ReduceLROnPlateau::fail_step() {
  if (!before_step_) return;
  counters_ = before_step_->counters;
  for (size_t g = 0; g < before_step_->rates.size(); ++g) set_rate(optimizer_, g, before_step_->rates[g]);
  before_step_.reset();
}

void ReduceLROnPlateau::reduce() {
  const std::vector<double> rates = read_rates(optimizer_);
  for (size_t g = 0; g < rates.size(); ++g) {
    const double reduced = std::max(rates[g] * options_.factor, options_.min_lr);
    if (rates[g] - reduced > options_.eps) set_rate(optimizer_, g, reduced);
  }
}

std::vector<double> ReduceLROnPlateau::get_last_lr() const { return read_rates(optimizer_); }

StateDict ReduceLROnPlateau::state_dict() const {
  StateDict state;
  if (std::isfinite(counters_.best)) state.scalars["best"] = counters_.best;  // JSON has no infinity
  state.scalars["num_bad_epochs"] = counters_.num_bad_epochs;
  state.scalars["cooldown_counter"] = counters_.cooldown_counter;
  state.scalars["last_epoch"] = counters_.last_epoch;
  add_rates(state, "last_lr", read_rates(optimizer_));
  return state;
}

void ReduceLROnPlateau::load_state_dict(const StateDict& state) {
  constexpr const char* kWho = "ReduceLROnPlateau";
  const auto bad = state.get<int64_t>(kWho, "num_bad_epochs");
  const auto cooldown = state.get<int64_t>(kWho, "cooldown_counter");
  const auto last = state.get<int64_t>(kWho, "last_epoch");
  const std::vector<double> rates = rates_in(state, kWho, "last_lr", read_rates(optimizer_).size());
  counters_.best = state.scalars.contains("best") ? state.get<double>(kWho, "best") : worst(options_.mode);
  counters_.num_bad_epochs = bad;
  counters_.cooldown_counter = cooldown;
  counters_.last_epoch = last;
  for (size_t g = 0; g < rates.size(); ++g) set_rate(optimizer_, g, rates[g]);
}

}  // namespace lockstep
