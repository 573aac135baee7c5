#include "lockstep/trainer/output/training_bar.h"

#include <algorithm>
#include <string>
#include <utility>

namespace lockstep {
namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(100);
constexpr int kFirstLines = 20;
constexpr int kLinesPerTime = 50;
constexpr auto kLongestInterval = std::chrono::minutes(10);

}  // namespace

void TrainingBar::draw(const Progress& progress) {
  line_.draw([&](int columns) { return render_bar(progress, columns, line_.unicode()); });
  last_drawn_ = std::chrono::steady_clock::now();
}

void TrainingBar::update(const Progress& progress) {
  if (!enabled_ || !line_.can_be_live()) return;
  const bool last = progress.step == progress.total_steps;
  if (!last && std::chrono::steady_clock::now() - last_drawn_ < kRedrawInterval) return;
  draw(progress);
}

void TrainingBar::release(size_t known, const std::function<void(size_t)>& told) {
  is_held_ = false;
  const auto held = std::exchange(held_, {});
  for (size_t i = known; i < held.size(); ++i) {
    held[i]();
    if (told) told(i + 1);
  }
}

void TrainingBar::drop() {
  is_held_ = false;
  held_.clear();
}

void TrainingBar::log(const Progress& progress) {
  if (!enabled_) return;
  if (is_held_) return held_.push_back([this, progress] { log(progress); });
  if (line_.can_be_live()) {
    draw(progress);
  } else if (is_line_due(progress)) {
    LiveLine::print_above(render_log_line(progress));
  }
}

bool TrainingBar::is_line_due(const Progress& progress) {
  const auto now = std::chrono::steady_clock::now();
  if (lines_ == 0) first_line_ = now;
  const auto interval =
      std::min<std::chrono::steady_clock::duration>((now - first_line_) / kLinesPerTime, kLongestInterval);
  const bool last = progress.step == progress.total_steps;
  if (lines_ >= kFirstLines && !last && now - last_line_ < interval) return false;
  ++lines_;
  last_line_ = now;
  return true;
}

void TrainingBar::message(std::string_view text) {
  if (!enabled_) return;
  if (is_held_) return held_.push_back([this, line = std::string(text)] { message(line); });
  LiveLine::print_above(text);
}

}  // namespace lockstep
