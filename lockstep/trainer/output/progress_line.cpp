#include "lockstep/trainer/output/progress_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace lockstep {
namespace {

constexpr int kShortestBar = 8;
constexpr int kLongestBar = 50;

double share_done(const Progress& progress) {
  if (progress.total_steps <= 0) return 0.0;
  const double share = static_cast<double>(progress.step) / static_cast<double>(progress.total_steps);
  return std::clamp(share, 0.0, 1.0);
}

std::string draw_bar(double share, int width, bool unicode) {
  std::string bar;
  if (!unicode) {
    const auto full = static_cast<int>(share * width);
    bar.append(static_cast<size_t>(full), '#').append(static_cast<size_t>(width - full), '.');
    return bar;
  }
  static constexpr std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<int>(share * width * 8);
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kEighths[static_cast<size_t>(eighths % 8)];
  const int drawn = (eighths + 7) / 8;
  bar.append(static_cast<size_t>(width - drawn), ' ');
  return bar;
}

}  // namespace

std::string format_duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (whole >= 3600) {
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string render_bar(const Progress& progress, int columns, bool unicode) {
  const double share = share_done(progress);
  const std::string percent = fmt::format("{:3.0f}%", std::floor(share * 100));
  // In the order in which they are shown and, from the back, given up.
  std::vector<std::string> fields = {fmt::format("step {}/{}", progress.step, progress.total_steps)};
  if (progress.loss) fields.push_back(fmt::format("loss {:.4f}", *progress.loss));
  if (progress.seconds_left) fields.push_back(format_duration(*progress.seconds_left) + " left");
  if (progress.samples_per_second)
    fields.push_back(fmt::format("{:.1f} samples/s", *progress.samples_per_second));

  const auto width_of = [&] {
    int width = static_cast<int>(percent.size());
    for (const auto& field : fields) width += static_cast<int>(field.size()) + 2;
    return width;
  };
  const int frame = 3;  // " |" before the bar and "|" after it
  while (!fields.empty() && width_of() + frame + kShortestBar > columns) {
    if (fields.size() == 1) break;
    fields.pop_back();
  }
  const int room = columns - width_of() - frame;
  std::string line = percent;
  if (room >= kShortestBar) line += " |" + draw_bar(share, std::min(room, kLongestBar), unicode) + "|";
  for (const auto& field : fields) line += "  " + field;
  if (room < kShortestBar) line.resize(std::min(line.size(), static_cast<size_t>(std::max(columns, 0))));
  return line;
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
