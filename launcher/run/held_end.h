// A request to save and end that comes while a rank is being replaced: the ranks save together, so it waits until that rank is
// back. Pure.
#pragma once

#include <optional>

namespace lockstep::launcher {

class HeldEnd {
 public:
  explicit HeldEnd(double shutdown_timeout) : timeout_(shutdown_timeout) {}

  /// Does the request, which is there at `now` (seconds), wait? It does so while `is_replacing`, for longest() at most.
  bool waits(bool is_replacing, double now) {
    if (!since_) since_ = now;
    return is_replacing && !is_released_ && now - *since_ < longest();
  }
  /// The rest of --shutdown-timeout is for saving.
  double longest() const { return timeout_ / 2; }
  /// It waits no longer: somebody insists, or the ranks have agreed on the end.
  void release() { is_released_ = true; }
  /// Has a request come?
  bool has_come() const { return since_.has_value(); }
  /// Ranks that were told at `now` have so long.
  double deadline(double now) const { return since_.value_or(now) + timeout_; }

 private:
  double timeout_;
  std::optional<double> since_{};
  bool is_released_ = false;
};

}  // namespace lockstep::launcher
