// Progress of anything that has steps: training by hand, evaluation, tokenizing, a download.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/tracking/progress/live_line.h"

namespace lockstep {

/// How a bar looks, and when it is shown.
struct ProgressOptions {
  int64_t total = 0;        ///< 0: not known; then there is no bar, only counts
  int64_t initial = 0;      ///< so many were done before, as a resumed download's: no part of the rate
  std::string label{};      ///< what is done, before the bar; empty: none
  std::string unit = "it";  ///< "B" for bytes, shown as kB, MB and so on
  bool enabled = true;      ///< false, on ranks other than 0: nothing is written
  bool leave = true;  ///< false: a live bar is taken away at the end, and no line says that it was reached
  /// On a terminal: nothing is shown before, so that what takes little time shows nothing.
  std::chrono::milliseconds delay{0};
  /// Default: detect_terminal(). Columns of 0: lines in place of a live bar.
  std::optional<Terminal> terminal{};
  /// Without a terminal: time until the first line. Each line doubles the time until the next, up to 10 min.
  std::chrono::milliseconds first_line = std::chrono::seconds(10);
};

/// Bars of this process that are made from now on write nothing, as if `enabled` were false. For ranks other than 0.
/// Thread-safe.
void disable_progress_bars();

/// On a terminal, one line on standard error, drawn at most ten times a second, which follows the window's
/// width. Elsewhere, lines at growing intervals, and one at the end. One thread at a time.
///
///     lockstep::ProgressBar bar({.total = steps, .label = "train"});
///     for (int64_t i = 0; i < steps; ++i) { ...; bar.set("loss 0.41"); bar.advance(); }
class ProgressBar {
 public:
  /// Starts the clock; nothing is written yet.
  explicit ProgressBar(ProgressOptions options = {});
  /// finish().
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// So many more are done. Draws where it is time.
  void advance(int64_t count = 1) { update(done_ + count); }
  /// So many of the total are done.
  void update(int64_t done);
  /// What stands behind the counts from the next drawing on.
  void set(std::string text) { text_ = std::move(text); }
  /// Writes a line that stays, above the bar.
  void message(std::string_view text);
  /// Shows the last state and goes to the next line. Also done by the destructor; a second call does nothing.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<std::string> fields() const;
  std::optional<double> share() const;
  void show(Clock::time_point now);

  ProgressOptions options_;
  LiveLine line_;
  int64_t done_ = 0;
  std::string text_{};
  Clock::time_point start_, next_;
  Clock::duration interval_;
  bool finished_ = false;
};

/// A range that advances a bar: see with_progress().
template <class Range>
class ProgressRange {
 public:
  /// For a range-based for.
  class Iterator {
   public:
    /// `bar` must outlive it.
    Iterator(std::ranges::iterator_t<Range> at, ProgressBar* bar) : at_(std::move(at)), bar_(bar) {}
    /// The range's element.
    decltype(auto) operator*() { return *at_; }
    /// Goes to the next element, and advances the bar by one.
    Iterator& operator++() {
      ++at_;
      bar_->advance();
      return *this;
    }
    /// Whether the range goes on.
    bool operator!=(const std::ranges::sentinel_t<Range>& end) const { return at_ != end; }

   private:
    std::ranges::iterator_t<Range> at_;
    ProgressBar* bar_;
  };
  /// A total of 0 becomes the range's size, where it has one.
  ProgressRange(Range&& range, ProgressOptions options)
      : range_(std::forward<Range>(range)), bar_(with_total(range_, std::move(options))) {}
  /// The first element.
  Iterator begin() { return {std::ranges::begin(range_), &bar_}; }
  /// The range's own end.
  auto end() { return std::ranges::end(range_); }

 private:
  template <class R>
  static ProgressOptions with_total(R& range, ProgressOptions options) {
    if constexpr (std::ranges::sized_range<R>) {
      if (options.total == 0) options.total = static_cast<int64_t>(std::ranges::size(range));
    }
    return options;
  }
  Range range_;  // a reference for what is not a temporary
  ProgressBar bar_;
};

/// A loop with a bar: for (auto& text : lockstep::with_progress(texts, {.label = "tokenize"})) ...
/// `range`: anything that a range-based for takes; a temporary is kept.
template <class Range>
ProgressRange<Range> with_progress(Range&& range, ProgressOptions options = {}) {
  return {std::forward<Range>(range), std::move(options)};
}

}  // namespace lockstep
