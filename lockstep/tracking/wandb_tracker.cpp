#include "lockstep/tracking/wandb_tracker.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/tracking/formats/json_text.h"
#include "lockstep/tracking/formats/wall_time.h"
#include "lockstep/tracking/formats/wandb_log.h"

namespace lockstep {
namespace {

using protozero::pbf_reader;
using protozero::pbf_writer;

// Field numbers of the client's messages (wandb 0.25).
namespace record {
constexpr int kNum = 1, kHistory = 2, kSummary = 3, kConfig = 5, kTelemetry = 11, kMetric = 12, kRun = 17,
              kExit = 18, kHeader = 21, kEnvironment = 26, kInfo = 200, kStreamId = 1;
}
namespace item {  // of a history, a summary or a config
constexpr int kItem = 1, kKey = 1, kNestedKey = 2, kValueJson = 16;
}
namespace history {
constexpr int kStep = 2, kStepNum = 1;
}
namespace header {
constexpr int kVersionInfo = 1, kProducer = 1, kMinConsumer = 2;
}
namespace run {
constexpr int kId = 1, kEntity = 2, kProject = 3, kConfig = 4, kGroup = 6, kJobType = 7, kDisplayName = 8,
              kNotes = 9, kTags = 10, kHost = 13, kStartTime = 17, kTelemetry = 19;
}
namespace timestamp {
constexpr int kSeconds = 1, kNanos = 2;
}
namespace telemetry {
constexpr int kFeature = 3, kCliVersion = 5, kPlatform = 13;
constexpr int kFinish = 2, kOffline = 4, kResumed = 5, kMetric = 7;  // features
}  // namespace telemetry
namespace environment {
constexpr int kOs = 1, kStartedAt = 3, kProgram = 6, kRoot = 11, kHost = 12, kExecutable = 14;
}
namespace metric {
constexpr int kName = 1, kGlobName = 2, kStepMetric = 4, kOptions = 6, kSummary = 7, kExpanded = 10;
constexpr int kStepSync = 1, kHidden = 2, kDefined = 3;  // options
constexpr std::array<std::pair<const char*, int>, 6> kSummaries = {
    {{"min", 1}, {"max", 2}, {"mean", 3}, {"last", 5}, {"none", 6}, {"first", 8}}};
}  // namespace metric
namespace exit_record {
constexpr int kExitCode = 1, kRuntime = 2;
}

constexpr const char* kGlobalStep = "global_step";
constexpr const char* kVersion = "0.25.1";  // of the client whose files these are like

void add_item(std::string& body, std::string_view name, std::string_view json) {
  pbf_writer writer(body);
  pbf_writer each(writer, item::kItem);
  each.add_string(item::kNestedKey, name.data(), name.size());
  each.add_string(item::kValueJson, json.data(), json.size());
}

void add_time(pbf_writer& writer, int field, double seconds) {
  pbf_writer time(writer, field);
  const double whole = std::floor(seconds);
  time.add_int64(timestamp::kSeconds, static_cast<int64_t>(whole));
  time.add_int32(timestamp::kNanos, static_cast<int32_t>((seconds - whole) * 1e9));
}

std::string link_of(const char* path) {
  std::error_code error;
  const auto target = std::filesystem::read_symlink(path, error);
  return error ? std::string() : target.string();
}

std::string platform_name() {
  utsname system{};
  return ::uname(&system) == 0 ? std::string("linux-") + system.machine : "linux";
}

std::string telemetry_body(bool is_resumed, bool is_finished) {
  std::string body;
  pbf_writer writer(body);
  {
    pbf_writer feature(writer, telemetry::kFeature);
    if (is_finished) feature.add_bool(telemetry::kFinish, true);
    feature.add_bool(telemetry::kOffline, true);
    if (is_resumed) feature.add_bool(telemetry::kResumed, true);
    feature.add_bool(telemetry::kMetric, true);
  }
  writer.add_string(telemetry::kCliVersion, kVersion);
  writer.add_string(telemetry::kPlatform, platform_name());
  return body;
}

std::string metric_body(const std::string& name, const WandbMetric& options, bool is_expanded) {
  std::string body;
  pbf_writer writer(body);
  writer.add_string(name.ends_with('*') ? metric::kGlobName : metric::kName, name);
  if (!options.step_metric.empty() && options.step_metric != name) {
    writer.add_string(metric::kStepMetric, options.step_metric);
  }
  {
    pbf_writer flags(writer, metric::kOptions);
    if (options.step_metric != name) flags.add_bool(metric::kStepSync, true);
    if (options.hidden) flags.add_bool(metric::kHidden, true);
    if (!is_expanded) flags.add_bool(metric::kDefined, true);
  }
  for (const auto& [kind, field] : metric::kSummaries) {
    if (options.summary != kind) continue;
    pbf_writer summary(writer, metric::kSummary);
    summary.add_bool(static_cast<protozero::pbf_tag_type>(field), true);
  }
  if (is_expanded) writer.add_bool(metric::kExpanded, true);
  return body;
}

/// Calls `use` with name and JSON of each item.
template <class Use>
void for_items(std::string_view body, Use use) {
  pbf_reader items(body.data(), body.size());
  while (items.next()) {
    if (items.tag() != item::kItem) {
      items.skip();
      continue;
    }
    pbf_reader each = items.get_message();
    std::string_view name, json;
    while (each.next()) {
      if (each.tag() != item::kKey && each.tag() != item::kNestedKey && each.tag() != item::kValueJson) {
        each.skip();
        continue;
      }
      const bool is_json = each.tag() == item::kValueJson;
      const auto view = each.get_view();
      (is_json ? json : name) = std::string_view(view.data(), view.size());
    }
    use(name, json);
  }
}

/// Nothing for what is no finite number.
std::optional<double> number_of(std::string_view json) {
  double value = 0;
  const auto [end, error] = std::from_chars(json.data(), json.data() + json.size(), value);
  if (error != std::errc() || end != json.data() + json.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

int64_t step_of(std::string_view body) {
  int64_t step = 0;
  for_items(body, [&](std::string_view name, std::string_view json) {
    if (name == kGlobalStep) step = static_cast<int64_t>(number_of(json).value_or(0));
  });
  return step;
}

/// The directory that this run has already, or the name of a new one.
std::filesystem::path find_run_directory(const std::filesystem::path& parent, const std::string& id,
                                         double now) {
  const std::string start = "offline-run-", end = "-" + id;
  const std::string fresh = start + compact_date(now) + end;
  std::vector<std::string> found;
  if (std::filesystem::is_directory(parent)) {
    for (const auto& entry : std::filesystem::directory_iterator(parent)) {
      const std::string name = entry.path().filename().string();
      if (name.size() == fresh.size() && name.starts_with(start) && name.ends_with(end))
        found.push_back(name);
    }
  }
  return parent / (found.empty() ? fresh : *std::max_element(found.begin(), found.end()));
}

}  // namespace

void WandbTracker::Statistics::add(double value) {
  if (number == 0) min = max = first = value;
  min = std::min(min, value);
  max = std::max(max, value);
  sum += value;
  last = value;
  ++number;
}

void WandbTracker::add_record(int field, std::string_view body) {
  record_.clear();
  pbf_writer writer(record_);
  writer.add_int64(record::kNum, ++number_);
  writer.add_message(static_cast<protozero::pbf_tag_type>(field), body.data(), body.size());
  {
    pbf_writer info(writer, record::kInfo);
    info.add_string(record::kStreamId, run_.id);
  }
  append_wandb_record(records_, file_.size() + records_.size(), record_);
}

void WandbTracker::write_records() {
  file_.append(records_);
  records_.clear();
}

void WandbTracker::note_kept_row(std::string_view row) {
  for_items(row, [&](std::string_view name, std::string_view json) {
    const auto number = number_of(json);
    if (!number) return;
    if (name == "_step") row_ = std::max(row_, static_cast<int64_t>(*number));
    if (name == "_runtime") seconds_before_ = std::max(seconds_before_, *number);
    if (!name.starts_with('_')) statistics_[std::string(name)].add(*number);
  });
}

// A summary stays if the row before it does.
std::string WandbTracker::kept_records(const std::string& file) {
  std::string kept = wandb_log_header();
  KeptRecords rows(run_);
  bool row_is_kept = true;
  read_wandb_records(file, [&](std::string_view bytes) {
    int64_t number = 0;
    bool is_kept = true;
    pbf_reader reader(bytes.data(), bytes.size());
    while (reader.next()) {
      if (reader.tag() == record::kNum) {
        number = reader.get_int64();
      } else if (reader.tag() == record::kHistory || reader.tag() == record::kSummary) {
        const bool is_row = reader.tag() == record::kHistory;
        const auto view = reader.get_view();
        const std::string_view body(view.data(), view.size());
        if (is_row) row_is_kept = rows.keep(step_of(body));
        is_kept = row_is_kept;
        if (is_row && is_kept) note_kept_row(body);
      } else if (reader.tag() == record::kMetric) {
        pbf_reader metric_reader = reader.get_message();
        if (metric_reader.next(metric::kName)) known_.emplace(metric_reader.get_string(), "");
      } else {
        if (reader.tag() == record::kExit) is_kept = false;
        reader.skip();
      }
    }
    if (!is_kept) return;
    append_wandb_record(kept, kept.size(), bytes);
    number_ = std::max(number_, number);
  });
  return kept;
}

void WandbTracker::start(const TrackedRun& tracked) {
  check_run_id(tracked.id);
  *this = WandbTracker(std::move(options_));
  run_ = tracked;
  started_ = wall_seconds();
  run_directory_ = find_run_directory(options_.directory / "wandb", run_.id, started_);
  const auto path = run_directory_ / ("run-" + run_.id + ".wandb");
  std::string kept = wandb_log_header();
  if (run_.resume_step) kept = kept_records(read_file_or_nothing(path));
  const bool is_new = kept == wandb_log_header();
  file_ = RecordFile(path, kept);
  std::error_code error;
  std::filesystem::create_directory(run_directory_ / "files", error);  // `wandb sync` writes there
  if (error) throw FileError("cannot create " + (run_directory_ / "files").string() + ": " + error.message());
  std::filesystem::remove(path.string() + ".synced", error);  // or it would not be uploaded again
  rules_.push_back({"*", {}});
  if (is_new) {
    begin_run();
  } else {
    add_record(record::kTelemetry, telemetry_body(true, false));
  }
  write_records();
}

void WandbTracker::begin_run() {
  std::string body;
  {
    pbf_writer writer(body);
    pbf_writer version(writer, header::kVersionInfo);
    version.add_string(header::kProducer, "lockstep");
    version.add_string(header::kMinConsumer, "0.40.0");
  }
  add_record(record::kHeader, body);
  body.clear();
  {
    pbf_writer writer(body);
    writer.add_string(run::kId, run_.id);
    if (!options_.entity.empty()) writer.add_string(run::kEntity, options_.entity);
    writer.add_string(run::kProject, options_.project);
    std::string config;
    add_item(config, "_wandb", "{}");
    writer.add_message(run::kConfig, config);
    if (!run_.group.empty()) writer.add_string(run::kGroup, run_.group);
    if (!options_.job_type.empty()) writer.add_string(run::kJobType, options_.job_type);
    writer.add_string(run::kDisplayName, run_.name.empty() ? run_.id : run_.name);
    if (!options_.notes.empty()) writer.add_string(run::kNotes, options_.notes);
    for (const auto& tag : options_.tags) writer.add_string(run::kTags, tag);
    writer.add_string(run::kHost, host_name());
    add_time(writer, run::kStartTime, started_);
    writer.add_message(run::kTelemetry, telemetry_body(false, false));
  }
  add_record(record::kRun, body);
  body.clear();
  {
    pbf_writer writer(body);
    utsname system{};
    ::uname(&system);
    writer.add_string(environment::kOs,
                      std::string(system.sysname) + "-" + system.release + "-" + system.machine);
    add_time(writer, environment::kStartedAt, started_);
    const std::string program = link_of("/proc/self/exe");
    writer.add_string(environment::kProgram, program);
    writer.add_string(environment::kRoot, link_of("/proc/self/cwd"));
    writer.add_string(environment::kHost, host_name());
    writer.add_string(environment::kExecutable, program);
  }
  add_record(record::kEnvironment, body);
  add_record(record::kTelemetry, telemetry_body(false, false));
  add_record(record::kMetric, metric_body(kGlobalStep, {.step_metric = kGlobalStep}, false));
  known_.emplace(kGlobalStep, "");
  add_record(record::kMetric, metric_body("*", {}, false));
}

void WandbTracker::define_metric(const std::string& name, const WandbMetric& options) {
  const auto& kinds = metric::kSummaries;
  if (!options.summary.empty() && std::none_of(kinds.begin(), kinds.end(), [&](const auto& kind) {
        return options.summary == kind.first;
      })) {
    throw ValueError("the summary of the metric " + name + " is " + options.summary +
                     "; it must be min, max, mean, first, last or none");
  }
  rules_.push_back({name, options});
  for (auto& [known, summary] : known_) {
    const bool fits =
        name.ends_with('*') ? known.starts_with(name.substr(0, name.size() - 1)) : known == name;
    if (fits) summary = options.summary;
  }
  if (!name.ends_with('*')) known_[name] = options.summary;
  add_record(record::kMetric, metric_body(name, options, false));
  write_records();
}

// A metric without a record of its own gets that of the last '*' that fits.
void WandbTracker::add_metric_of(const std::string& name) {
  if (known_.contains(name)) return;
  for (auto rule = rules_.rbegin(); rule != rules_.rend(); ++rule) {
    const std::string_view pattern = rule->pattern;
    if (!pattern.ends_with('*') || !name.starts_with(pattern.substr(0, pattern.size() - 1))) continue;
    known_.emplace(name, rule->metric.summary);
    add_record(record::kMetric, metric_body(name, rule->metric, true));
    return;
  }
}

void WandbTracker::begin_row(int64_t step) {
  row_ = std::max(step, row_ + 1);
  history_.clear();
  summary_.clear();
  const auto add = [&](const char* name, auto value) {
    json_.clear();
    if constexpr (std::is_floating_point_v<decltype(value)>) {
      append_json_number(json_, value, NotFinite::literal);
    } else {
      append_json_number(json_, value);
    }
    add_item(history_, name, json_);
    add_item(summary_, name, json_);
  };
  const double now = wall_seconds();
  add("_step", row_);
  add("_timestamp", now);
  add("_runtime", seconds_before_ + (now - started_));
  add(kGlobalStep, step);
}

void WandbTracker::end_row() {
  {
    pbf_writer writer(history_);
    pbf_writer step(writer, history::kStep);
    step.add_int64(history::kStepNum, row_);
  }
  add_record(record::kHistory, history_);
  add_record(record::kSummary, summary_);
  write_records();
}

void WandbTracker::log(int64_t step, const TrackedValues& values) {
  for (const auto& [name, value] : values) add_metric_of(name);
  begin_row(step);
  for (const auto& [name, value] : values) {
    if (name == kGlobalStep) continue;  // the row has it
    json_.clear();
    append_json_number(json_, value, NotFinite::literal);
    add_item(history_, name, json_);
    auto& seen = statistics_[name];
    if (std::isfinite(value)) seen.add(value);
    const std::string& kind = known_.at(name);
    if (kind == "none") continue;
    if (!kind.empty() && kind != "last" && seen.number > 0) {
      const double shown = kind == "min"    ? seen.min
                           : kind == "max"  ? seen.max
                           : kind == "mean" ? seen.sum / static_cast<double>(seen.number)
                                            : seen.first;
      json_ = "{\"" + kind + "\":";
      append_json_number(json_, shown, NotFinite::literal);
      json_ += '}';
    }
    add_item(summary_, name, json_);
  }
  end_row();
}

void WandbTracker::log_text(int64_t step, const std::string& name, std::string_view text) {
  add_metric_of(name);
  begin_row(step);
  json_.clear();
  append_json_string(json_, text);
  add_item(history_, name, json_);
  add_item(summary_, name, json_);
  end_row();
}

void WandbTracker::log_histogram(int64_t step, const std::string& name, const Histogram& histogram) {
  add_metric_of(name);
  begin_row(step);
  json_ = "{\"_type\": \"histogram\", \"values\": [";
  for (const int64_t count : histogram.counts) {
    if (json_.back() != '[') json_ += ", ";
    append_json_number(json_, count);
  }
  json_ += "], \"bins\": [";
  for (const double edge : histogram.edges) {
    if (json_.back() != '[') json_ += ", ";
    append_json_number(json_, edge, NotFinite::literal);
  }
  json_ += "]}";
  add_item(history_, name, json_);
  add_item(summary_, name, json_);
  end_row();
}

namespace {

std::string items_of(const TrackedSettings& values) {
  std::string body, json;
  for (const auto& [name, value] : values) {
    json.clear();
    append_json(json, value, NotFinite::literal);
    add_item(body, name, json);
  }
  return body;
}

}  // namespace

void WandbTracker::config(const TrackedSettings& settings) {
  if (settings.empty()) return;
  add_record(record::kConfig, items_of(settings));
  write_records();
}

void WandbTracker::summary(const TrackedSettings& results) {
  if (results.empty()) return;
  add_record(record::kSummary, items_of(results));
  write_records();
}

void WandbTracker::finish(int exit_code) {
  add_record(record::kTelemetry, telemetry_body(run_.resume_step.has_value(), true));
  std::string body;
  {
    pbf_writer writer(body);
    writer.add_int32(exit_record::kExitCode, exit_code);
    writer.add_int32(exit_record::kRuntime,
                     static_cast<int32_t>(seconds_before_ + (wall_seconds() - started_)));
  }
  add_record(record::kExit, body);
  write_records();
  file_.close();
}

}  // namespace lockstep
