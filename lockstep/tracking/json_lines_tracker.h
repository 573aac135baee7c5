// A run as JSON lines: {"step": 10, "time": 1795369332.957, "loss": 0.41}.
#pragma once

#include <filesystem>

#include "lockstep/tracking/formats/record_file.h"
#include "lockstep/tracking/tracker.h"

namespace lockstep {

/// A line for every log(), text and histogram; `time` is in seconds since 1970. A number that is not finite is
/// null. Beside "metrics.jsonl" stands "metrics.run.json": id, name, group, rank, world_size, start and end of
/// the run, settings, results, environment (run_facts()), exit code (null until finish()).
class JsonLinesTracker : public Tracker {
 public:
  /// The file, such as "run/metrics.jsonl"; start() makes it and its folder.
  explicit JsonLinesTracker(std::filesystem::path path) : path_(std::move(path)) {}
  std::string name() const override { return "jsonl"; }  ///< "jsonl"
  /// Replaces the file; of a resumed run the lines that TrackedRun::resume_step keeps stay. Writes the .run.json.
  void start(const TrackedRun& run) override;
  /// {"step": 10, "time": ..., "loss": 0.41}. Values named "step" and "time" are left out.
  void log(int64_t step, const TrackedValues& values) override;
  /// {"step": 10, "time": ..., "name": "text"}
  void log_text(int64_t step, const std::string& name, std::string_view text) override;
  /// {"step": 10, "time": ..., "name": {"edges": [...], "counts": [...]}}
  void log_histogram(int64_t step, const std::string& name, const Histogram& histogram) override;
  /// Writes the .run.json anew, with these under "config".
  void config(const TrackedSettings& settings) override;
  /// Writes the .run.json anew, with these under "summary".
  void summary(const TrackedSettings& results) override;
  /// Writes the .run.json with the end of the run and the exit code, and closes the file.
  void finish(int exit_code) override;

 private:
  void write_run_file();

  std::filesystem::path path_;
  RecordFile file_;
  std::string line_;
  TrackedRun run_;
  TrackedSettings settings_{}, results_{}, environment_{};
  double started_ = 0;
  std::optional<double> ended_{};
  int exit_code_ = 0;
};

}  // namespace lockstep
