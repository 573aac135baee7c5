// A line at the bottom of the terminal that is drawn again and again.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

/// Where standard error ends.
struct Terminal {
  int columns = 0;  ///< 0: no terminal, or none that can show a live line
  bool unicode = false;
  int window = -1;  ///< descriptor of a window whose width may change: every drawing asks for it
};

/// This process's terminal. Under lockrun, whose workers write into pipes, LOCKSTEP_TERMINAL names the launcher's
/// own terminal, and LOCKSTEP_TERMINAL_COLUMNS says how wide it was at the start.
Terminal detect_terminal();

/// A line on standard error that leaves nothing behind when the window's width changes: it is cut at the
/// window's edge, not wrapped, and the cursor rests at its beginning, so that drawing again clears what a
/// terminal has made of a longer line. Messages of log.h and print_above() stand above it.
///
/// When there are several live lines, the one that was drawn last is shown. Thread-safe.
class LiveLine {
 public:
  explicit LiveLine(Terminal terminal) : terminal_(terminal) {}
  ~LiveLine();
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  bool can_be_live() const { return terminal_.columns > 0; }
  bool unicode() const { return terminal_.unicode; }
  /// `render` makes a text of at most so many columns. Does nothing without a terminal.
  void draw(const std::function<std::string(int columns)>& render);
  /// Leaves the line as it is and goes to the next one.
  void finish();
  /// Takes the line away.
  void clear();

  /// Writes lines that stay, above whatever line is shown.
  static void print_above(std::string_view text);

 private:
  const Terminal terminal_;
};

}  // namespace lockstep
