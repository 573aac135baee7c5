#include "lockstep/trainer/output/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lockstep/tracking/progress/progress_line.h"

namespace lockstep {
namespace {

bool is_speed(const std::string& name) { return name == "runtime" || name.ends_with("_per_second"); }

std::string counted(double count, const char* noun) {
  return fmt::format("{:.10g} {}{}", std::round(count * 100) / 100, noun, count == 1 ? "" : "s");
}

double round_to(double value, double scale) { return std::round(value * scale) / scale; }

}  // namespace

void add_speed(Metrics& metrics, const std::string& split, double runtime, double samples, double steps) {
  metrics[split + "_runtime"] = round_to(runtime, 1e4);
  if (steps <= 0) return;
  metrics[split + "_samples_per_second"] = round_to(samples / runtime, 1e3);
  metrics[split + "_steps_per_second"] = round_to(steps / runtime, 1e3);
}

std::string summary_table(const std::vector<std::pair<std::string, Metrics>>& splits) {
  constexpr const char* kSpeed = "samples/s";
  std::vector<std::string> columns;
  std::vector<std::map<std::string, std::string>> rows;
  for (const auto& [split, metrics] : splits) {
    auto& row = rows.emplace_back();
    row[kSpeed] = "-";
    for (const auto& [key, value] : metrics) {
      if (!key.starts_with(split + "_")) continue;
      const std::string name = key.substr(split.size() + 1);
      if (name == "samples_per_second") row[kSpeed] = fmt::format("{:.1f}", value);
      if (is_speed(name)) continue;
      row[name] = fmt::format("{:.4f}", value);
      if (std::find(columns.begin(), columns.end(), name) == columns.end()) columns.push_back(name);
    }
  }
  std::sort(columns.begin(), columns.end(), [](const std::string& a, const std::string& b) {
    return std::pair(a != "loss", a) < std::pair(b != "loss", b);
  });
  columns.emplace_back(kSpeed);
  size_t first = 0;
  for (const auto& split : splits) first = std::max(first, split.first.size());
  std::string text = splits.empty() ? "" : std::string(first + 2, ' ');
  const auto width_of = [&](const std::string& column) {
    size_t width = column.size();
    for (auto& row : rows) width = std::max(width, row[column].size());
    return width;
  };
  for (const auto& column : columns) {
    if (!splits.empty()) text += fmt::format("  {:>{}}", column, width_of(column));
  }
  for (size_t s = 0; s < splits.size(); ++s) {
    text += fmt::format("\n  {:{}}", splits[s].first, first);
    for (const auto& column : columns) text += fmt::format("  {:>{}}", rows[s][column], width_of(column));
  }
  return text;
}

std::string length_of_run(const TrainerState& state, int64_t first_step, double seconds) {
  const std::string all = fmt::format("{}, {}", counted(static_cast<double>(state.global_step), "step"),
                                      counted(state.epoch, "epoch"));
  if (first_step == 0) return fmt::format("{} in {}", all, format_duration(seconds));
  const int64_t steps = state.global_step - first_step;
  if (steps <= 0) return all + "; nothing was left to train";
  const std::string which = steps == 1 ? fmt::format("step {}", state.global_step)
                                       : fmt::format("steps {} to {}", first_step + 1, state.global_step);
  return fmt::format("{}; {} in {}", all, which, format_duration(seconds));
}

}  // namespace lockstep
