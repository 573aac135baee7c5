// Progress on standard error: a live bar on a terminal, a line at every logging step elsewhere.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "lockstep/trainer/output/progress_line.h"

namespace lockstep {

/// Where standard error ends.
struct Terminal {
  int columns = 0;  ///< 0: no terminal, or none that can show a live line
  bool unicode = false;
};

/// This process's terminal. Under lockrun, whose workers write into pipes, LOCKSTEP_TERMINAL_COLUMNS says how
/// wide the launcher's own terminal is.
Terminal detect_terminal();

/// One run's display. Not thread-safe. With `enabled` false (ranks other than 0) it writes nothing.
class ProgressBar {
 public:
  ProgressBar(bool enabled, Terminal terminal) : enabled_(enabled), terminal_(terminal) {}
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Redraws the bar, at most ten times a second; writes nothing without a terminal.
  void update(const Progress& progress);
  /// A logging step: redraws the bar at once, or writes one line without a terminal.
  void log(const Progress& progress);
  /// Writes a line that stays, above the bar.
  void message(std::string_view text);
  /// Leaves the bar as it is and goes to the next line.
  void finish();

 private:
  void draw(const std::string& line);

  bool enabled_;
  Terminal terminal_;
  std::string drawn_;  ///< the bar on the screen; empty: none
  std::chrono::steady_clock::time_point last_drawn_{};
};

}  // namespace lockstep
