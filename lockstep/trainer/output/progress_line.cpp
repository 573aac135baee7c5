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
  std::vector<std::string> fields = {fmt::format("step {}/{}", progress.step, progress.total_steps)};
  if (progress.loss) fields.push_back(fmt::format("loss {:.4f}", *progress.loss));
  if (progress.seconds_left) fields.push_back(format_duration(*progress.seconds_left) + " left");
  if (progress.samples_per_second) {
    fields.push_back(fmt::format("{:.1f} samples/s", *progress.samples_per_second));
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
