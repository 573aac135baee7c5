#include "lockstep/tracking/json_lines_tracker.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/tracking/environment.h"
#include "lockstep/tracking/formats/json_text.h"
#include "lockstep/tracking/formats/wall_time.h"

namespace lockstep {
namespace {

constexpr std::string_view kStep = "{\"step\": ";

/// Whether a line, without its end, is whole and stays.
bool is_kept(std::string_view line, KeptRecords& records) {
  if (!line.starts_with(kStep) || !line.ends_with('}')) return false;
  int64_t step = 0;
  const auto [end, error] = std::from_chars(line.data() + kStep.size(), line.data() + line.size(), step);
  return error == std::errc() && *end == ',' && records.keep(step);
}

std::string kept_lines(std::string_view lines, KeptRecords records) {
  std::string kept;
  while (true) {
    const size_t end = lines.find('\n');
    if (end == std::string_view::npos) return kept;  // what follows is no whole line
    if (is_kept(lines.substr(0, end), records)) kept += lines.substr(0, end + 1);
    lines.remove_prefix(end + 1);
  }
}

}  // namespace

void JsonLinesTracker::start(const TrackedRun& run) {
  check_run_id(run.id);
  run_ = run;
  if (run_.name.empty()) run_.name = run_.id;
  started_ = wall_seconds();
  ended_.reset();
  settings_.clear();
  results_.clear();
  environment_.clear();
  for (auto& [name, value] : run_facts()) environment_[name] = std::move(value);
  file_ = RecordFile(path_, run.resume_step ? kept_lines(read_file_or_nothing(path_), KeptRecords(run)) : "");
  write_run_file();
}

void JsonLinesTracker::begin_line(int64_t step) {
  line_ = kStep;
  append_json_number(line_, step);
  line_ += ", \"time\": ";
  append_wall_time(line_, wall_seconds());
}

void JsonLinesTracker::end_line() {
  line_ += "}\n";
  file_.append(line_);
}

void JsonLinesTracker::log(int64_t step, const TrackedValues& values) {
  begin_line(step);
  for (const auto& [name, value] : values) {
    if (name == "step" || name == "time") continue;  // the line has them
    line_ += ", ";
    append_json_string(line_, name);
    line_ += ": ";
    append_json_number(line_, value, NotFinite::null);
  }
  end_line();
}

void JsonLinesTracker::log_text(int64_t step, const std::string& name, std::string_view text) {
  begin_line(step);
  line_ += ", ";
  append_json_string(line_, name);
  line_ += ": ";
  append_json_string(line_, text);
  end_line();
}

void JsonLinesTracker::log_histogram(int64_t step, const std::string& name, const Histogram& histogram) {
  begin_line(step);
  line_ += ", ";
  append_json_string(line_, name);
  line_ += ": {\"edges\": [";
  for (const double edge : histogram.edges) {
    if (line_.back() != '[') line_ += ", ";
    append_json_number(line_, edge, NotFinite::null);
  }
  line_ += "], \"counts\": [";
  for (const int64_t count : histogram.counts) {
    if (line_.back() != '[') line_ += ", ";
    append_json_number(line_, count);
  }
  line_ += "]}";
  end_line();
}

void JsonLinesTracker::config(const TrackedSettings& settings) {
  for (const auto& [name, value] : settings) settings_[name] = value;
  write_run_file();
}

void JsonLinesTracker::summary(const TrackedSettings& results) {
  for (const auto& [name, value] : results) results_[name] = value;
  write_run_file();
}

void JsonLinesTracker::finish(int exit_code) {
  ended_ = wall_seconds();
  exit_code_ = exit_code;
  write_run_file();
  file_.close();
}

void JsonLinesTracker::write_run_file() {
  std::string text = "{";
  const auto add = [&](std::string_view key, const TrackedSetting& value) {
    text += text.size() > 1 ? ",\n  " : "\n  ";
    append_json_string(text, key);
    text += ": ";
    append_json(text, value, NotFinite::null);
  };
  const auto add_object = [&](std::string_view key, const TrackedSettings& values) {
    text += ",\n  ";
    append_json_string(text, key);
    text += ": ";
    append_json(text, values, NotFinite::null);
  };
  add("id", run_.id);
  add("name", run_.name);
  add("group", run_.group);
  add("rank", int64_t{run_.rank});
  add("world_size", int64_t{run_.world_size});
  add("started", started_);
  add("ended", ended_.value_or(std::nan("")));  // null
  add("exit_code", ended_ ? TrackedSetting(int64_t{exit_code_}) : TrackedSetting(std::nan("")));
  add_object("config", settings_);
  add_object("summary", results_);
  add_object("environment", environment_);
  std::filesystem::path path = path_;
  write_file_atomically(path.replace_extension(".run.json"), text + "\n}\n");
}

}  // namespace lockstep
