#include "lockstep/tracking/json_lines_tracker.h"

#include <cmath>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/tracking/environment.h"
#include "lockstep/tracking/formats/json_lines.h"
#include "lockstep/tracking/formats/json_text.h"

namespace lockstep {
namespace {

std::string kept_lines(std::string_view lines, const TrackedRun& run) {
  return kept_json_lines(lines, KeptRecords(run), [](std::string_view, bool) { return false; });
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
  file_ = RecordFile(path_, run.resume_step ? kept_lines(read_file_or_nothing(path_), run) : "");
  write_run_file();
}

void JsonLinesTracker::log(int64_t step, const TrackedValues& values) {
  line_.clear();
  append_json_line(line_, step, values, NotFinite::null);
  file_.append(line_);
}

void JsonLinesTracker::log_text(int64_t step, const std::string& name, std::string_view text) {
  line_.clear();
  append_json_line(line_, step, name, text);
  file_.append(line_);
}

void JsonLinesTracker::log_histogram(int64_t step, const std::string& name, const Histogram& histogram) {
  line_.clear();
  append_json_line(line_, step, name, histogram);
  file_.append(line_);
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
