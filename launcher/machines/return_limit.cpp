#include "launcher/machines/return_limit.h"

#include <algorithm>
#include <cmath>

namespace lockstep::launcher {
namespace {

constexpr double kFirstWait = 30, kLongestWait = 600;

}  // namespace

std::deque<double>& ReturnLimit::recent(const std::string& machine, double now) {
  std::deque<double>& times = went_[machine];
  while (!times.empty() && now - times.front() >= kWindow) times.pop_front();
  return times;
}

void ReturnLimit::went(const std::string& machine, double now) {
  std::erase_if(went_, [&](const auto& entry) { return now - entry.second.back() >= kWindow; });
  recent(machine, now).push_back(now);
}

size_t ReturnLimit::times(const std::string& machine, double now) {
  if (!went_.contains(machine)) return 0;
  const size_t count = recent(machine, now).size();
  if (count == 0) went_.erase(machine);
  return count;
}

std::optional<double> ReturnLimit::wait_until(const std::string& machine, double now) {
  const size_t count = times(machine, now);
  if (count < kFree) return std::nullopt;
  const double wait = std::min(kLongestWait, kFirstWait * std::exp2(static_cast<double>(count - kFree)));
  const double until = went_.at(machine).back() + wait;
  return until > now ? std::optional(until) : std::nullopt;
}

}  // namespace lockstep::launcher
