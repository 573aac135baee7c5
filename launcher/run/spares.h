// The processes that wait to take the place of a rank that dies (--spares).
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace lockstep::launcher {

/// Decides; lockrun acts. Each spare has a slot, in which another one may follow it. Of one attempt. Pure: no effects.
class Spares {
 public:
  /// `count`: --spares; 0: none. One that does not wait in init() within `start_seconds` is not relied on.
  Spares(int count, double start_seconds);

  int count() const { return static_cast<int>(slots_.size()); }
  /// Are there fewer than there should be? `replacements_left`: there are never more spares than that.
  bool has_missing(int replacements_left) const;
  /// The slot in which one is to be started now; call while has_missing().
  int take_missing();
  void started(int slot, pid_t pid, double now);
  void waits(int slot);
  /// One has ended by itself, or could not be started; `how`: such as "was killed by SIGKILL". Returns what lockrun says.
  std::string ended(int slot, const std::string& how);
  /// One that is to take a rank's place now, and is no spare any more. Those that wait go first.
  std::optional<int> take(double now);

  /// Why none was ever started, if they were wanted; empty otherwise. For the end of the job.
  std::string find_complaint() const;

 private:
  enum class State { none, starting, waiting };
  struct Slot {
    State state = State::none;
    pid_t pid = 0;
    double since = 0;
  };
  int living() const;

  double start_seconds_;
  std::vector<Slot> slots_;
  bool was_started_ = false;
  bool is_given_up_ = false;
  int lost_ = 0;  ///< have died while they waited, since one has taken a place
};

}  // namespace lockstep::launcher
