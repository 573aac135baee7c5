#include "launcher/process/restart_policy.h"

#include <algorithm>

namespace lockstep::launcher {
namespace {

constexpr double kSoonAgain = 60, kLongestDelay = 60;

}  // namespace

double RestartRules::longest_delay() const { return delay > 0 ? std::max(delay, kLongestDelay) : 0; }

std::optional<double> RestartPolicy::after_failure(double now) {
  const bool soon = last_failure_ && now - *last_failure_ < kSoonAgain;
  last_failure_ = now;
  next_delay_ = !soon ? 0 : std::clamp(2 * next_delay_, rules_.delay, std::max(rules_.delay, kLongestDelay));
  while (rules_.refill > 0 && !counted_.empty() && now - counted_.front() >= rules_.refill)
    counted_.pop_front();
  if (counted_.size() >= static_cast<size_t>(rules_.most)) return std::nullopt;
  counted_.push_back(now);
  ++restarts_;
  return next_delay_;
}

void RestartPolicy::inherit(int restarts, double now) {
  if (restarts <= restarts_) return;
  for (; restarts_ < restarts; ++restarts_) counted_.push_back(now);
  last_failure_ = now;
}

}  // namespace lockstep::launcher
