#include "lockstep/tracking/progress/progress_bar.h"

#include <algorithm>
#include <atomic>

#include <fmt/format.h>

#include "lockstep/tracking/progress/progress_line.h"

namespace lockstep {
namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(100);
constexpr auto kLongestInterval = std::chrono::minutes(10);

std::atomic<bool> are_disabled{false};

}  // namespace

void disable_progress_bars() { are_disabled = true; }

ProgressBar::ProgressBar(ProgressOptions options)
    : options_(std::move(options)),
      line_(options_.terminal ? *options_.terminal : detect_terminal()),
      done_(options_.initial),
      start_(Clock::now()),
      next_(start_),
      interval_(options_.first_line) {
  if (are_disabled) options_.enabled = false;
  next_ += line_.can_be_live() ? Clock::duration(options_.delay) : interval_;
}

ProgressBar::~ProgressBar() { finish(); }

std::optional<double> ProgressBar::share() const {
  if (options_.total <= 0) return std::nullopt;
  return static_cast<double>(done_) / static_cast<double>(options_.total);
}

std::vector<std::string> ProgressBar::fields() const {
  const bool is_bytes = options_.unit == "B";
  const auto amount = [&](int64_t count) {
    return is_bytes ? format_bytes(static_cast<double>(count)) : std::to_string(count);
  };
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const double rate =
      seconds > 0 ? static_cast<double>(std::max<int64_t>(done_ - options_.initial, 0)) / seconds : 0;
  std::vector<std::string> all = {amount(done_)};
  if (options_.total > 0) all[0] += "/" + amount(options_.total);
  if (!is_bytes) all[0] += " " + options_.unit;
  if (!text_.empty()) all.push_back(text_);
  if (done_ < options_.total && rate > 0) {
    all.push_back(
        fmt::format("{} left", format_duration(static_cast<double>(options_.total - done_) / rate)));
  } else {
    all.push_back(format_duration(seconds));
  }
  if (rate > 0) {
    const bool is_slow = rate < 1 && !is_bytes;
    all.push_back(is_bytes  ? format_bytes(rate) + "/s"
                  : is_slow ? format_number("%.3g s/", 1 / rate) + options_.unit
                            : fmt::format("{}{}/s", format_number("%.1f ", rate), options_.unit));
  }
  return all;
}

void ProgressBar::show(Clock::time_point now) {
  if (line_.can_be_live()) {
    line_.draw([&](int columns) {
      std::vector<BarField> shown;
      for (auto& field : fields())
        shown.push_back({.text = std::move(field), .rank = -static_cast<int>(shown.size())});
      return render_bar(options_.label, share(), std::move(shown), columns, line_.unicode());
    });
    next_ = now + kRedrawInterval;
    return;
  }
  std::string text = options_.label.empty() ? "" : options_.label + ": ";
  if (share()) text += format_number("%.0f%%  ", std::min(*share(), 1.0) * 100);
  std::string separator;
  for (const auto& field : fields()) text += std::exchange(separator, "  ") + field;
  LiveLine::print_above(text);
  interval_ = std::min<Clock::duration>(2 * interval_, kLongestInterval);
  next_ = now + interval_;
}

void ProgressBar::update(int64_t done) {
  done_ = done;
  if (!options_.enabled || finished_) return;
  const auto now = Clock::now();
  if (now >= next_) show(now);
}

void ProgressBar::message(std::string_view text) {
  if (options_.enabled) LiveLine::print_above(text);
}

void ProgressBar::finish() {
  if (finished_ || !options_.enabled) return;
  finished_ = true;
  if (!options_.leave) return line_.clear();
  show(Clock::now());
  line_.finish();
}

}  // namespace lockstep
