#include "lockstep/trainer/output/progress_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "lockstep/tracking/progress/progress_line.h"

namespace lockstep {
namespace {

double share_done(const Progress& progress) {
  if (progress.total_steps <= 0) return 0.0;
  const double share = static_cast<double>(progress.step) / static_cast<double>(progress.total_steps);
  return std::clamp(share, 0.0, 1.0);
}

}  // namespace

std::string render_bar(const Progress& progress, int columns, bool unicode) {
  std::vector<BarField> fields = {{.text = fmt::format("step {}/{}", progress.step, progress.total_steps),
                                   .brief = fmt::format("{}/{}", progress.step, progress.total_steps),
                                   .rank = 1}};
  fields.push_back({.text = fmt::format("epoch {:.2f}", progress.epoch), .rank = -2});
  if (progress.loss) fields.push_back({.text = fmt::format("loss {:.4f}", *progress.loss), .rank = 200});
  const std::string left =
      progress.seconds_left ? format_duration(*progress.seconds_left) + " left" : std::string();
  const std::string spent = progress.seconds ? format_duration(*progress.seconds) : std::string();
  if (!spent.empty() && !left.empty()) {
    fields.push_back({.text = fmt::format("{}, {}", spent, left), .brief = left, .rank = -1});
  } else if (!spent.empty() || !left.empty()) {
    fields.push_back({.text = spent + left, .rank = 99});
  }
  if (progress.samples_per_second) {
    fields.push_back({.text = fmt::format("{:.1f} samples/s", *progress.samples_per_second), .rank = -3});
  }
  return render_bar("", share_done(progress), std::move(fields), columns, unicode);
}

std::string render_log_line(const Progress& progress) {
  std::string line = fmt::format("step {}/{} ({:.0f}%)  epoch {:.2f}", progress.step, progress.total_steps,
                                 std::floor(share_done(progress) * 100), progress.epoch);
  if (progress.loss) line += fmt::format("  loss {:.4f}", *progress.loss);
  if (progress.learning_rate) line += fmt::format("  lr {:.3g}", *progress.learning_rate);
  if (progress.grad_norm) line += fmt::format("  grad_norm {:.3g}", *progress.grad_norm);
  if (progress.samples_per_second) line += fmt::format("  {:.1f} samples/s", *progress.samples_per_second);
  if (progress.seconds_left) line += fmt::format("  {} left", format_duration(*progress.seconds_left));
  return line;
}

}  // namespace lockstep
