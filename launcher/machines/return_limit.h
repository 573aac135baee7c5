// Machines that come and go over and over: how long each of them has to wait before it may interrupt the others again.
// Pure.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>

namespace lockstep::launcher {

class ReturnLimit {
 public:
  /// So often may a machine go within kWindow seconds and come back at once.
  static constexpr size_t kFree = 3;
  static constexpr double kWindow = 600;

  /// `machine` has left the job, or was lost, at `now` (seconds).
  void went(const std::string& machine, double now);
  /// When it may interrupt the others again; none: at once. 30 s after it went for the third time within the window, twice as
  /// long after each further time, at most 600 s.
  std::optional<double> wait_until(const std::string& machine, double now);
  /// How often it went within the window before `now`.
  size_t times(const std::string& machine, double now);

 private:
  /// Those times that still count.
  std::deque<double>& recent(const std::string& machine, double now);

  std::map<std::string, std::deque<double>> went_;
};

}  // namespace lockstep::launcher
