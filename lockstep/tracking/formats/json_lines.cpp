#include "lockstep/tracking/formats/json_lines.h"

#include <charconv>
#include <optional>

#include "lockstep/base/clock.h"
#include "lockstep/tracking/formats/wall_time.h"

namespace lockstep {
namespace {

constexpr std::string_view kStep = "{\"step\": ";

void begin_line(std::string& out, int64_t step) {
  out += kStep;
  append_json_number(out, step);
  out += ", \"time\": ";
  append_wall_time(out, wall_seconds());
}

void add_name(std::string& out, std::string_view name) {
  out += ", ";
  append_json_string(out, name);
  out += ": ";
}

/// Nothing if it is no whole line of a step.
std::optional<int64_t> parse_step(std::string_view line) {
  if (!line.starts_with(kStep) || !line.ends_with('}')) return std::nullopt;
  int64_t step = 0;
  const auto [end, error] = std::from_chars(line.data() + kStep.size(), line.data() + line.size(), step);
  if (error != std::errc() || *end != ',') return std::nullopt;
  return step;
}

}  // namespace

void append_json_line(std::string& out, int64_t step, const TrackedValues& values, NotFinite not_finite) {
  begin_line(out, step);
  for (const auto& [name, value] : values) {
    if (name == "step" || name == "time") continue;  // the line has them
    add_name(out, name);
    append_json_number(out, value, not_finite);
  }
  out += "}\n";
}

void append_json_line(std::string& out, int64_t step, const std::string& name, std::string_view text) {
  begin_line(out, step);
  add_name(out, name);
  append_json_string(out, text);
  out += "}\n";
}

void append_json_line(std::string& out, int64_t step, const std::string& name, const Histogram& histogram) {
  begin_line(out, step);
  add_name(out, name);
  out += "{\"edges\": [";
  for (const double edge : histogram.edges) {
    if (out.back() != '[') out += ", ";
    append_json_number(out, edge, NotFinite::null);
  }
  out += "], \"counts\": [";
  for (const int64_t count : histogram.counts) {
    if (out.back() != '[') out += ", ";
    append_json_number(out, count);
  }
  out += "]}}\n";
}

std::string kept_json_lines(std::string_view lines, KeptRecords records,
                            const std::function<bool(std::string_view line, bool last_is_kept)>& keep_other) {
  std::string kept;
  bool last_is_kept = true;
  while (true) {
    const size_t end = lines.find('\n');
    if (end == std::string_view::npos) return kept;  // what follows is no whole line
    const std::string_view line = lines.substr(0, end);
    const auto step = parse_step(line);
    if (step) last_is_kept = records.keep(*step);
    if (step ? last_is_kept : keep_other(line, last_is_kept)) kept += lines.substr(0, end + 1);
    lines.remove_prefix(end + 1);
  }
}

}  // namespace lockstep
