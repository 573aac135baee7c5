// Putting the lines of many ranks on one output, each whole, and rank 0's progress bar live below them.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include "launcher/output/sink.h"

namespace lockstep::launcher {

/// One rank's standard output or error, as text: what of it is not yet a whole line, and its last lines.
struct LineSource {
  int rank = 0;
  std::string prefix;              ///< "[rank 0]: ", colored or not, or empty
  bool may_be_live = false;        ///< rank 0: its unfinished line is shown on a terminal
  std::string partial{};           ///< the unfinished line, so far
  double partial_since = 0;        ///< monotonic seconds; 0 when there is none
  double update_shown = 0;         ///< when a line of a progress bar was last written where none can be live
  std::deque<std::string> tail{};  ///< the last whole lines, oldest first
  std::function<void(std::string_view)> on_line{};  ///< told of every whole line, as it is seen
};

inline constexpr size_t kTailLines = 20;
/// A rank-0 line that stays unfinished this long is shown on a terminal: it may be a question.
inline constexpr double kPromptDelay = 0.1;

/// What is visible of a line that rewrites itself with carriage returns: its last state.
std::string_view visible_text(std::string_view line);

/// Rules. A line is written when it is whole, with its source's prefix. A longer line than 1 MiB is broken
/// up. On a terminal, rank 0's unfinished line is shown at once if it rewrites itself (a progress bar;
/// without prefix, so that its width is as the program meant it), and after kPromptDelay if not; lines of
/// others are put above it. Elsewhere, and for other ranks, a prefixed line that rewrites itself appears in
/// its final state and every 10 s before.
class Console {
 public:
  /// `verbatim`: there is a single source, whose bytes pass unchanged.
  Console(Sink& sink, bool verbatim) : sink_(sink), verbatim_(verbatim) {}

  void feed(LineSource& source, std::string_view bytes, double now);
  /// The source has ended: its unfinished line is finished.
  void end(LineSource& source);
  /// Shows what has waited for kPromptDelay.
  void show_prompt(LineSource& source, double now);
  /// A line of lockrun's own (or several), not ending in '\n'.
  void message(std::string_view text);
  Sink& sink() { return sink_; }

 private:
  void finish_line(LineSource& source, std::string_view rest);
  void go_live(LineSource& source);
  void feed_partial(LineSource& source, std::string_view rest, double now);
  void put_above_live(std::string_view text);

  Sink& sink_;
  bool verbatim_;
  bool mid_line_ = false;  ///< verbatim: the last byte written was no '\n'
  LineSource* live_ = nullptr;
};

}  // namespace lockstep::launcher
