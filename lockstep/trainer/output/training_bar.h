// A training's progress on standard error: a live bar on a terminal, lines at growing intervals elsewhere.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include "lockstep/tracking/progress/live_line.h"
#include "lockstep/trainer/output/progress_line.h"

namespace lockstep {

/// One run's display. With `enabled` false (ranks other than 0) it writes nothing.
class TrainingBar {
 public:
  TrainingBar(bool enabled, Terminal terminal) : enabled_(enabled), line_(terminal) {}

  /// Redraws the bar, at most ten times a second; writes nothing without a terminal.
  void update(const Progress& progress);
  /// A logging step: redraws the bar at once. Without a terminal it writes a line, the first 20 times and at the
  /// last step; in between when 2 % of the time since the first have passed since the last one, or 10 minutes.
  void log(const Progress& progress);
  /// Writes a line that stays, above the bar.
  void message(std::string_view text);
  /// From here on lines and bars wait for release(), which writes them, or drop(), which does not.
  void hold() { is_held_ = true; }
  /// Without the first `known` of them. `told`: called after each with its number, from 1 on; may be empty.
  void release(size_t known = 0, const std::function<void(size_t)>& told = {});
  void drop();
  /// Leaves the bar as it is and goes to the next line.
  void finish() { line_.finish(); }

 private:
  void draw(const Progress& progress);

  bool enabled_;
  bool is_held_ = false;
  std::vector<std::function<void()>> held_{};
  LiveLine line_;
  bool is_line_due(const Progress& progress);
  std::chrono::steady_clock::time_point last_drawn_{}, first_line_{}, last_line_{};
  int lines_ = 0;
};

}  // namespace lockstep
