#include "lockstep/trainer/output/training_bar.h"

namespace lockstep {
namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(100);

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

void TrainingBar::log(const Progress& progress) {
  if (!enabled_) return;
  if (line_.can_be_live()) {
    draw(progress);
  } else {
    LiveLine::print_above(render_log_line(progress));
  }
}

void TrainingBar::message(std::string_view text) {
  if (enabled_) LiveLine::print_above(text);
}

}  // namespace lockstep
