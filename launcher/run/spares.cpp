#include "launcher/run/spares.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace lockstep::launcher {
namespace {

/// So many spares may die while they wait, before one of them has taken a place: what kills them kills the next one too.
constexpr int kMostLost = 3;

}  // namespace

Spares::Spares(int count, double start_seconds)
    : start_seconds_(start_seconds), slots_(static_cast<size_t>(count)) {}

int Spares::living() const {
  return static_cast<int>(std::count_if(slots_.begin(), slots_.end(),
                                        [](const Slot& slot) { return slot.state != State::none; }));
}

bool Spares::has_missing(int replacements_left) const {
  return !is_given_up_ && living() < std::min(static_cast<int>(slots_.size()), replacements_left);
}

int Spares::take_missing() {
  const auto free =
      std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.state == State::none; });
  was_started_ = true;
  free->state = State::starting;
  return static_cast<int>(free - slots_.begin());
}

void Spares::started(int slot, pid_t pid, double now) {
  Slot& spare = slots_[static_cast<size_t>(slot)];
  spare.pid = pid;
  spare.since = now;
}

void Spares::waits(int slot) {
  Slot& spare = slots_[static_cast<size_t>(slot)];
  if (spare.state == State::starting) spare.state = State::waiting;
}

std::string Spares::ended(int slot, const std::string& how) {
  const Slot spare = std::exchange(slots_[static_cast<size_t>(slot)], {});
  if (spare.state == State::none) return {};  // it was to take a place just then, which another process gets
  const std::string what = spare.pid > 0 ? fmt::format("spare {} (pid {}) {}", slot, spare.pid, how)
                                         : fmt::format("spare {} {}", slot, how);
  if (spare.state != State::waiting) {
    is_given_up_ = true;
    return fmt::format(
        "{} before it waited in init(), and no more are started: RANK is \"spare\" until init() returns",
        what);
  }
  if (++lost_ >= kMostLost) {
    is_given_up_ = true;
    return fmt::format("{} while it waited, the {}rd in a row, and no more are started", what, kMostLost);
  }
  return fmt::format("{} while it waited; another one is started", what);
}

std::optional<int> Spares::take(double now) {
  const Slot* best = nullptr;
  for (const Slot& slot : slots_) {
    const bool comes_soon =
        slot.state == State::starting && slot.pid > 0 && now - slot.since < start_seconds_;
    if (slot.state != State::waiting && !comes_soon) continue;
    if (best == nullptr || (slot.state == State::waiting) > (best->state == State::waiting) ||
        (slot.state == best->state && slot.since < best->since)) {
      best = &slot;
    }
  }
  if (best == nullptr) return std::nullopt;
  const auto slot = static_cast<size_t>(best - slots_.data());
  slots_[slot] = {};
  lost_ = 0;
  return static_cast<int>(slot);
}

std::string Spares::find_complaint() const {
  if (slots_.empty() || was_started_) return {};
  return fmt::format(
      "--spares {}: none was started, because the program has not reached lockstep::Recovery, has none, or cannot hand its "
      "state over",
      slots_.size());
}

}  // namespace lockstep::launcher
