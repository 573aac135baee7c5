// Whether ranks are started again after a failure, and when. Pure: no effects.
#pragma once

#include <deque>
#include <optional>

namespace lockstep::launcher {

struct RestartRules {
  int most = 0;       ///< --max-restarts
  double delay = 0;   ///< --restart-delay, seconds; 0: every restart is immediate
  double refill = 0;  ///< --restart-refill: a restart counts for so many seconds; 0: for ever

  /// So many seconds may a restart have to wait.
  double longest_delay() const;
};

class RestartPolicy {
 public:
  explicit RestartPolicy(RestartRules rules) : rules_(rules) {}

  /// After a failure at `now` (seconds): how long to wait before all ranks are started again; none: they are
  /// not. The first restart is immediate. After a second failure within 60 s of the one before the wait is
  /// `delay`, and twice as long with each further one, 60 s at most.
  std::optional<double> after_failure(double now);
  /// There have been `restarts` already, which somebody else counted. Fewer than so far change nothing.
  void inherit(int restarts, double now);
  /// So far.
  int restarts() const { return restarts_; }

 private:
  RestartRules rules_;
  std::deque<double> counted_;  ///< when those that count were
  std::optional<double> last_failure_;
  double next_delay_ = 0;
  int restarts_ = 0;
};

}  // namespace lockstep::launcher
