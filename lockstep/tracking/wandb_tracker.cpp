#include "lockstep/tracking/wandb_tracker.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/log.h"
#include "lockstep/base/shell.h"
#include "lockstep/tracking/formats/json_lines.h"
#include "lockstep/tracking/formats/json_text.h"
#include "lockstep/tracking/wandb_follower.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 7> kSummaries = {"", "min", "max", "mean", "first", "last", "none"};
constexpr std::string_view kConfig = "{\"config\": ", kMetric = "{\"metric\": ", kSummary = "{\"summary\": ";

/// The settings stay, as what a run was told, and results stay with the step before them.
std::string kept_lines(const std::string& lines, const TrackedRun& run) {
  return kept_json_lines(lines, KeptRecords(run), [](std::string_view line, bool last_is_kept) {
    return line.starts_with(kConfig) || line.starts_with(kMetric) ||
           (line.starts_with(kSummary) && last_is_kept);
  });
}

}  // namespace

WandbTracker::WandbTracker(WandbOptions options) : options_(std::move(options)) {}

WandbTracker::~WandbTracker() = default;

void WandbTracker::start(const TrackedRun& run) {
  check_run_id(run.id);
  follower_.reset();
  const auto path = options_.directory / "wandb" / (run.id + ".jsonl");
  const std::string before = run.resume_step ? read_file_or_nothing(path) : std::string();
  const bool replaces = !run.resume_step || !before.empty();
  file_ = RecordFile(path, first_line(run, replaces) + (run.resume_step ? kept_lines(before, run) : ""));
  follow();
}

std::string WandbTracker::first_line(const TrackedRun& run, bool replaces) const {
  const nlohmann::json facts = {{"id", run.id},
                                {"name", run.name.empty() ? run.id : run.name},
                                {"group", run.group},
                                {"project", options_.project},
                                {"entity", options_.entity},
                                {"job_type", options_.job_type},
                                {"notes", options_.notes},
                                {"tags", options_.tags},
                                {"resumed", run.resume_step.has_value()},
                                {"replaces", replaces}};
  return dump_json({{"run", facts}}, {.replace_invalid_utf8 = true}) + "\n";
}

void WandbTracker::follow() {
  // Beside the run, so that it can be sent from another machine, and whatever program this is.
  const auto script = file_.path().parent_path() / "wandb_follower.py";
  write_file_atomically(script, detail::wandb_follower_script());
  auto log = file_.path();
  log.replace_extension(".log");
  try {
    follower_ = std::make_unique<detail::WandbFollower>(
        detail::WandbFollower::Options{.script = script,
                                       .lines = file_.path(),
                                       .log = log,
                                       .start_seconds = options_.start_timeout_seconds,
                                       .end_seconds = options_.finish_timeout_seconds});
  } catch (const NotInstalledError& error) {
    if (options_.is_optional) throw Error(error.what());
    throw;
  } catch (const Error& error) {
    warn(error.what());
  }
}

void WandbTracker::warn(const std::string& problem) {
  follower_.reset();
  const std::string file = file_.path().string();
  log::warning(fmt::format(
      "Weights & Biases gets no more of this run: {}. The training is not affected, and {} has its "
      "values; to send them later: {} {} {}",
      problem, file, shell_quoted(detail::follower_python()),
      shell_quoted((file_.path().parent_path() / "wandb_follower.py").string()), shell_quoted(file)));
}

void WandbTracker::append_line() {
  file_.append(line_);
  if (!follower_) return;
  if (const auto problem = follower_->problem()) warn(*problem);
}

void WandbTracker::log(int64_t step, const TrackedValues& values) {
  line_.clear();
  append_json_line(line_, step, values, NotFinite::literal);
  append_line();
}

void WandbTracker::log_text(int64_t step, const std::string& name, std::string_view text) {
  line_.clear();
  append_json_line(line_, step, name, text);
  append_line();
}

void WandbTracker::log_histogram(int64_t step, const std::string& name, const Histogram& histogram) {
  line_.clear();
  append_json_line(line_, step, name, histogram);
  append_line();
}

void WandbTracker::config(const TrackedSettings& settings) {
  if (settings.empty()) return;
  line_ = kConfig;
  append_json(line_, settings, NotFinite::literal);
  line_ += "}\n";
  append_line();
}

void WandbTracker::summary(const TrackedSettings& results) {
  if (results.empty()) return;
  line_ = kSummary;
  append_json(line_, results, NotFinite::literal);
  line_ += "}\n";
  append_line();
}

void WandbTracker::define_metric(const std::string& name, const WandbMetric& metric) {
  if (std::find(kSummaries.begin(), kSummaries.end(), metric.summary) == kSummaries.end()) {
    throw ValueError(
        fmt::format("the summary of the metric {} is {}; it must be min, max, mean, first, last or none",
                    name, metric.summary));
  }
  line_ = kMetric;
  append_json(line_,
              TrackedSettings{{"name", name},
                              {"step_metric", metric.step_metric},
                              {"summary", metric.summary},
                              {"hidden", metric.hidden}},
              NotFinite::literal);
  line_ += "}\n";
  append_line();
}

void WandbTracker::finish(int exit_code) {
  line_ = fmt::format("{{\"finish\": {}}}\n", exit_code);
  append_line();
  if (follower_) {
    if (const auto problem = follower_->finish()) warn(*problem);
  }
  follower_.reset();
  file_.close();
}

}  // namespace lockstep
