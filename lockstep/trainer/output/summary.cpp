#include "lockstep/trainer/output/summary.h"

#include <fmt/format.h>

#include <cmath>

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
  metrics[split + "_samples_per_second"] = round_to(samples / runtime, 1e3);
  metrics[split + "_steps_per_second"] = round_to(steps / runtime, 1e3);
}

std::string summary_line(const std::string& split, const Metrics& metrics) {
  const std::string prefix = split + "_";
  std::string first, others, speed;
  for (const auto& [key, value] : metrics) {
    if (!key.starts_with(prefix)) continue;
    const std::string name = key.substr(prefix.size());
    if (name == "samples_per_second") speed = fmt::format("  ({:.1f} samples/s)", value);
    if (is_speed(name)) continue;
    (name == "loss" ? first : others) += fmt::format("  {} {:.4f}", name, value);
  }
  return fmt::format("{:5}{}{}{}", split, first, others, speed);
}

std::string length_of_run(const TrainerState& state, double seconds) {
  return fmt::format("{}, {} in {}", counted(static_cast<double>(state.global_step), "step"),
                     counted(state.epoch, "epoch"), format_duration(seconds));
}

}  // namespace lockstep
