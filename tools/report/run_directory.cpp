#include "tools/report/run_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <system_error>

#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/job/stop_signals.h"
#include "lockstep/tracking/report_to.h"
#include "tools/report/history.h"
#include "tools/timeline/summary.h"
#include "tools/timeline/trace.h"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kEventLogName = "events.jsonl";

/// An object, empty where there is no such file or it holds something else: what lies beside the history may be
/// missing or half of another program's.
json object_in(const fs::path& path) {
  if (!fs::exists(path)) return json::object();
  json found = parse_json(read_file(path));
  return found.is_object() ? found : json::object();
}

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : dump_json(value, {.replace_invalid_utf8 = true});
}

void add_texts(const json& object, Texts& texts) {
  if (!object.is_object()) return;
  for (const auto& [name, value] : object.items()) {
    if (!value.is_null()) texts[name] = text_of(value);
  }
}

std::string string_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::optional<double> number_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

/// What only one rank knows of itself. The rest of what it has logged is what rank 0 has logged.
bool is_own(const std::string& name) { return name.starts_with("rank/") || name.starts_with("train/time_"); }

void add_ranks(RunDirectory& run, const std::string& extension) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(run.path, ignored)) {
    const std::string file = entry.path().filename().string();
    const std::string start = "metrics-rank";
    if (!file.starts_with(start) || entry.path().extension() != extension) continue;
    const std::string digits = entry.path().stem().string().substr(start.size());
    if (digits.empty() || digits.size() > 6 || digits.find_first_not_of("0123456789") != digits.npos)
      continue;
    History history =
        (extension == ".csv"
             ? read_csv_history(entry.path())
             : read_json_lines(entry.path(),
                               [](const std::string& name) { return is_own(name) ? name : ""; }))
            .history;
    std::erase_if(history.series, [](const auto& named) { return !is_own(named.first); });
    if (!history.series.empty()) run.ranks[std::stoi(digits)] = std::move(history);
  }
}

/// What the JSON lines tracker has written of the run.
struct TrackedFacts {
  json facts = json::object();
  bool is_stale = false;  ///< the run has gone on without the tracker, so that log.jsonl knows more
};

TrackedFacts read_tracked(const fs::path& directory) {
  TrackedFacts tracked{.facts = object_in(directory / "metrics.run.json")};
  if (!number_of(tracked.facts, "ended")) return tracked;
  std::error_code error;
  const auto logged = fs::last_write_time(directory / "log.jsonl", error);
  if (error) return tracked;
  const auto ended = fs::last_write_time(directory / "metrics.run.json", error);
  tracked.is_stale = !error && logged > ended + std::chrono::seconds(2);
  return tracked;
}

/// Those of how the run began and ended; empty if they are stale.
json current_facts(const fs::path& directory) {
  auto [facts, is_stale] = read_tracked(directory);
  return is_stale ? json::object() : facts;
}

void read_history(RunDirectory& run) {
  const auto take = [&](ReadHistory read, const fs::path& file) {
    run.ranks[0] = std::move(read.history);
    run.damaged_lines = read.damaged_lines;
    run.source = file.filename().string();
  };
  const fs::path lines = run.path / "metrics.jsonl", table = run.path / "metrics.csv",
                 log = run.path / "log.jsonl", end = run.path / kRunEndName;
  run.ranks[0];  // there is always a rank 0
  if (read_tracked(run.path).is_stale) {
    take(read_json_lines(log, tracked_name), log);
  } else if (fs::exists(lines)) {
    take(read_json_lines(lines), lines);
    add_ranks(run, ".jsonl");
  } else if (fs::exists(table)) {
    take(read_csv_history(table), table);
    add_ranks(run, ".csv");
  } else if (fs::exists(log)) {
    take(read_json_lines(log, tracked_name), log);
  } else if (fs::exists(end)) {
    run.source = kRunEndName;
  } else if (!run.events.empty()) {
    run.source = kEventLogName;
  } else {
    throw FileError(
        fmt::format("{} holds no run: it has none of metrics.jsonl, metrics.csv (--report-to jsonl,csv), "
                    "log.jsonl (a Trainer's) and {} (lockrun --event-log); give the --output-dir of a run",
                    run.path.string(), kEventLogName));
  }
  // A run that has ended before its first entry still has an error and arguments to show.
  const bool has_more = fs::exists(end) || !run.events.empty() || number_of(current_facts(run.path), "ended");
  if (run.ranks[0].steps.empty() && !has_more) {
    throw FileError(
        fmt::format("{}: nothing has been logged yet; lower --logging-steps, or wait for the first entry",
                    (run.path / run.source).string()));
  }
}

/// "train/cpu_load_rank3" of rank 0's log is rank 3's "rank/cpu_load".
void deal_to_ranks(RunDirectory& run) {
  History& log = run.ranks[0];
  std::map<int, std::map<std::string, Series>> found;
  for (const char* name : {"cpu_load", "memory_mb"}) {
    for (int rank = 0;; ++rank) {
      const auto at = log.series.find(fmt::format("train/{}_rank{}", name, rank));
      if (at == log.series.end()) break;
      found[rank]["rank/" + std::string(name)] = std::move(at->second);
      log.series.erase(at);
    }
  }
  for (auto& [rank, series] : found) {
    // A rank with a log of its own has these there too.
    History& own = run.ranks.try_emplace(rank, History{.steps = log.steps, .times = log.times}).first->second;
    if (rank > 0 && own.series.contains("rank/cpu_load")) continue;
    for (auto& [name, one] : series) {
      if (own.steps.size() == log.steps.size()) own.series[name] = std::move(one);
    }
  }
}

/// A value that stands in one record only is a result, not a curve.
void move_results(RunDirectory& run) {
  auto& series = run.ranks[0].series;
  for (auto at = series.begin(); at != series.end();) {
    const std::string name = at->first.starts_with("train/train_") ? at->first.substr(6) : at->first;
    const bool is_result = name.starts_with("train_") || name == "train/total_flos";
    if (!is_result) {
      ++at;
      continue;
    }
    run.results[name] = at->second.values.back();
    at = series.erase(at);
  }
}

void read_facts(RunDirectory& run) {
  const json facts = object_in(run.path / "metrics.run.json");
  // The ranks of a job that track have the job's name as their group.
  run.name = string_of(facts, string_of(facts, "group").empty() ? "name" : "group");
  run.id = string_of(facts, "id");
  run.world_size = static_cast<int>(number_of(facts, "world_size").value_or(0));
  const json tracked = current_facts(run.path);
  run.started = number_of(tracked, "started");
  run.ended = number_of(tracked, "ended");
  add_texts(object_in(run.path / "training_args.json"), run.arguments);
  if (facts.contains("config")) add_texts(facts["config"], run.arguments);
  add_texts(object_in(run.path / "environment.json"), run.environment);
  if (facts.contains("environment")) add_texts(facts["environment"], run.environment);
  // A loop by hand may have left the size of its job at 1.
  for (const auto& [texts, name] :
       {std::pair(&run.arguments, "world_size"), std::pair(&run.environment, env::kWorldSize)}) {
    if (run.world_size <= 1 && texts->contains(name)) run.world_size = std::atoi(texts->at(name).c_str());
  }
  run.world_size = std::max(run.world_size, 1);
  for (const json& results : {object_in(run.path / "all_results.json"), tracked.value("summary", json())}) {
    if (!results.is_object()) continue;
    for (const auto& [name, value] : results.items()) {
      if (value.is_number()) run.results[name] = value.get<double>();
    }
  }
  const auto& times = run.ranks[0].times;
  if (!times.empty()) {
    // A resumed run started with its first record, not with its last part.
    run.started = run.started ? std::min(*run.started, times.front()) : times.front();
    if (!run.ended) run.ended = times.back();
  }
  if (run.started && run.ended) {
    run.duration = *run.ended - *run.started;
  } else if (run.results.contains("train_runtime") && run.results.contains("train_steps_per_second")) {
    run.duration = run.results["train_runtime"];
  }
  if (!run.name.empty()) return;
  const auto path = fs::absolute(run.path).lexically_normal();
  run.name = (path.has_filename() ? path : path.parent_path()).filename().string();
}

uint64_t bytes_in(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : fs::recursive_directory_iterator(folder, ignored)) {
    if (entry.is_regular_file(ignored)) bytes += entry.file_size(ignored);
  }
  return bytes;
}

double modified(const fs::path& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  if (error) return 0;
  return std::chrono::duration<double>(std::chrono::file_clock::to_sys(time).time_since_epoch()).count();
}

void read_checkpoints(RunDirectory& run) {
  const auto found = checkpoint::candidates(run.path);
  json state = object_in(run.path / "trainer_state.json");
  if (!found.empty()) {  // newer than the file of a run that was then resumed
    json newest = object_in(found.front().path / "trainer_state.json");
    if (number_of(newest, "global_step").value_or(-1) > number_of(state, "global_step").value_or(-1))
      state = std::move(newest);
  }
  const auto& logged = run.ranks[0].steps;
  run.steps = static_cast<int64_t>(number_of(state, "global_step").value_or(0));
  if (!logged.empty()) run.steps = std::max(run.steps, *std::max_element(logged.begin(), logged.end()));
  if (const auto planned = number_of(state, "max_steps");
      planned && *planned >= static_cast<double>(run.steps))
    run.max_steps = static_cast<int64_t>(*planned);
  const std::string best = fs::path(string_of(state, "best_model_checkpoint")).filename().string();
  for (const auto& candidate : found) {
    SavedCheckpoint saved{.name = candidate.path.filename().string(), .step = candidate.step};
    try {
      const auto manifest = checkpoint::read_manifest(candidate.path);
      for (const auto& [file, entry] : manifest.files) saved.bytes += entry.bytes;
      saved.world_size = manifest.world_size;
      saved.can_resume = std::any_of(manifest.files.begin(), manifest.files.end(), [](const auto& file) {
        return file.first.starts_with("training_state");
      });
      saved.written = modified(candidate.path / checkpoint::kManifestName);
    } catch (const Error& error) {
      saved.bytes = bytes_in(candidate.path);
      saved.written = modified(candidate.path);
      saved.problem = error.what();
    }
    saved.is_best = !best.empty() && saved.name == best;
    run.checkpoints.push_back(std::move(saved));
  }
  std::reverse(run.checkpoints.begin(), run.checkpoints.end());
}

/// The newest checkpoint that a training can go on from; null: there is none.
const SavedCheckpoint* newest_to_resume(const RunDirectory& run) {
  const auto found = std::find_if(run.checkpoints.rbegin(), run.checkpoints.rend(),
                                  [](const SavedCheckpoint& saved) { return saved.can_resume; });
  return found == run.checkpoints.rend() ? nullptr : &*found;
}

/// How a run's program has ended, as run_end.json and the trackers' files say.
struct RunEnd {
  int code = 0;
  std::string error{};       ///< what it said then
  std::string stopped_by{};  ///< the argument that ended the training before its last step; empty: none
};

void set_end(RunDirectory& run, const RunEnd& end) {
  const auto set = [&](std::string status, std::string detail, const char* kind) {
    run.status = std::move(status);
    run.detail = std::move(detail);
    run.status_kind = kind;
  };
  const SavedCheckpoint* const newest = newest_to_resume(run);
  const auto resumable = [&] {
    return newest->step == run.steps ? "can be resumed" : fmt::format("can be resumed from {}", newest->name);
  };
  const std::string stopped = fmt::format("stopped at step {}", run.steps);
  const int code = end.code;
  if (code == 0 && !end.stopped_by.empty()) {
    const std::string reason = fmt::format("{} has passed", end.stopped_by);
    return set(stopped, newest == nullptr ? reason : fmt::format("{}, {}", reason, resumable()), "wait");
  }
  if (code == 0) return set("finished", "", "good");
  constexpr int kFirstSignal = 128;
  const bool is_stopped = code == job::kResumeCode || code == stop_exit_code(SIGINT) ||
                          code == kFirstSignal + SIGTERM || code == kFirstSignal + SIGUSR1;
  if (!is_stopped) {
    set("failed", fmt::format("exit code {}", code), "bad");
    run.error = end.error;
  } else {
    set(stopped, newest == nullptr ? fmt::format("exit code {}", code) : resumable(), "wait");
  }
}

void read_status(RunDirectory& run, bool log_has_end) {
  const json facts = current_facts(run.path), end = object_in(run.path / kRunEndName);
  auto code = number_of(facts, "ended") ? number_of(facts, "exit_code") : std::nullopt;
  if (!code) code = number_of(end, "exit_code");
  if (code) {
    return set_end(run, {.code = static_cast<int>(*code),
                         .error = string_of(end, "error"),
                         .stopped_by = string_of(end, "stopped_by")});
  }
  const bool has_log = fs::exists(run.path / "log.jsonl");
  if (facts.empty() && (log_has_end || (!has_log && run.results.contains("train_runtime"))))
    return set_end(run, {});
  if (facts.empty() && !has_log) return;
  run.status = "not finished";
  run.status_kind = "wait";
  if (const auto* const newest = newest_to_resume(run))
    run.detail = fmt::format("{} can be resumed", newest->name);
}

/// What lockrun knows and nobody else has told.
void add_events(RunDirectory& run) {
  if (run.events.empty()) return;
  if (run.status.empty() && run.events.end_code) set_end(run, {.code = *run.events.end_code});
  if (run.started || run.ended || run.duration) return;
  run.started = run.events.events.front().time;
  run.ended = run.events.events.back().time;
  run.duration = *run.ended - *run.started;
}

TimeParts compute_parts(const TraceRank& rank) {
  const Intervals blocked = united(rank.of({"wait", "collective"}));
  Intervals known = blocked;
  TimeParts parts{.rank = rank.name, .source = "timeline"};
  const auto steps = static_cast<double>(std::max<size_t>(rank.of({"backward"}).size(), 1));
  for (const char* category : {"data", "forward", "backward", "optimizer"}) {
    const Intervals spans = united(rank.of({category}));
    known.insert(known.end(), spans.begin(), spans.end());
    parts.parts.emplace_back(category, (length(spans) - length(intersection(spans, blocked))) / 1e3 / steps);
  }
  parts.parts.emplace_back("communication", length(blocked) / 1e3 / steps);
  const double rest = summarize(rank).span - length(united(known));
  parts.parts.emplace_back("other", std::max(rest, 0.0) / 1e3 / steps);
  return parts;
}

/// What `--report-performance` has logged.
void add_logged_times(RunDirectory& run) {
  const std::string start = "train/time_", end = "_ms";
  for (const auto& [number, history] : run.ranks) {
    TimeParts parts{.rank = fmt::format("rank {}", number), .source = "log"};
    for (const char* part : {"data", "forward", "backward", "optimizer", "communication", "other"}) {
      const auto found = history.series.find(start + part + end);
      if (found == history.series.end() || found->second.values.empty()) continue;
      const auto& values = found->second.values;
      double sum = 0;
      for (const double value : values) sum += value;
      parts.parts.emplace_back(part, sum / static_cast<double>(values.size()));
    }
    if (!parts.parts.empty()) run.time_parts.push_back(std::move(parts));
  }
}

}  // namespace

size_t RunDirectory::points() const {
  size_t number = 0;
  for (const auto& [rank, history] : ranks) {
    for (const auto& [name, series] : history.series) number += series.values.size();
  }
  return number;
}

RunDirectory read_run_directory(const fs::path& path, const fs::path& timeline, const fs::path& event_log) {
  if (!fs::is_directory(path)) {
    throw FileError(
        fmt::format("{}: there is no such directory; give the --output-dir of a run", path.string()));
  }
  RunDirectory run{.path = path};
  const fs::path events = event_log.empty() ? path / kEventLogName : event_log;
  if (!event_log.empty() || fs::exists(events)) run.events = read_job_events(events);
  read_history(run);
  deal_to_ranks(run);
  move_results(run);
  const bool log_has_end = run.results.contains("train_runtime");
  read_facts(run);
  read_checkpoints(run);
  read_status(run, log_has_end);
  add_events(run);
  const fs::path trace = timeline.empty() ? path / "timeline.json" : timeline;
  if (!timeline.empty() || fs::exists(trace)) {
    for (const auto& [pid, rank] : read_trace({trace}).ranks) run.time_parts.push_back(compute_parts(rank));
  } else {
    add_logged_times(run);
  }
  return run;
}

}  // namespace lockstep::tools
