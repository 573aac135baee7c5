// A run of Weights & Biases, written without a network: `wandb sync DIRECTORY/wandb/offline-run-*` uploads it.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/tracking/formats/record_file.h"
#include "lockstep/tracking/tracker.h"

namespace lockstep {

/// Where a run is written, and the arguments of wandb.init() under their names.
struct WandbOptions {
  /// The run lies in `<directory>/wandb/offline-run-<date>-<run id>`.
  std::filesystem::path directory = ".";
  std::string project = "lockstep";  ///< the project that it is uploaded to
  std::string entity{};              ///< user or team; empty: that of whoever uploads it
  std::string job_type{};            ///< such as "train"; empty: none
  std::string notes{};               ///< a description for people; empty: none
  std::vector<std::string> tags{};   ///< to find the run by
};

/// wandb.define_metric's arguments.
struct WandbMetric {
  std::string step_metric = "global_step";  ///< the x axis
  std::string summary{};  ///< what the summary shows: min, max, mean, first, last or none; empty: the last
  bool hidden = false;    ///< true: no chart of its own
};

/// Every log() is one row of the history, with its step as "global_step", which is the x axis of all metrics.
/// "_step", which grows with every row, is the step too, or the next number where that is taken.
///
/// The file can be read while the run goes, and goes on after a resume, in the same directory: it is one run
/// with every step once. The real client makes a second directory, which replaces the first part when both are
/// uploaded.
class WandbTracker : public Tracker {
 public:
  /// Writes nothing before start().
  explicit WandbTracker(WandbOptions options = {}) : options_(std::move(options)) {}
  std::string name() const override { return "wandb"; }  ///< "wandb"
  /// Makes the run's directory; of a resumed run the rows that TrackedRun::resume_step keeps stay.
  void start(const TrackedRun& run) override;
  /// A row of the history; each value also becomes the summary's, as define_metric() says.
  void log(int64_t step, const TrackedValues& values) override;
  /// A row of the history with a text.
  void log_text(int64_t step, const std::string& name, std::string_view text) override;
  /// A row of the history with a wandb.Histogram.
  void log_histogram(int64_t step, const std::string& name, const Histogram& histogram) override;
  /// wandb.config: adds and replaces.
  void config(const TrackedSettings& settings) override;
  /// wandb.summary: adds and replaces.
  void summary(const TrackedSettings& results) override;
  /// Writes the exit code, which Weights & Biases shows as finished (0) or failed, and closes the file.
  void finish(int exit_code) override;

  /// How a metric is shown; a last '*' stands for all names that begin so. Of several that fit, the last one
  /// counts. Call it after start(). Throws ValueError for another `summary`.
  void define_metric(const std::string& name, const WandbMetric& metric = {});

  /// Where the run lies; empty before start().
  const std::filesystem::path& directory() const { return run_directory_; }

 private:
  struct Statistics {
    double min = 0, max = 0, sum = 0, first = 0, last = 0;
    int64_t number = 0;
    void add(double value);
  };
  struct Rule {
    std::string pattern;
    WandbMetric metric;
  };

  std::string kept_records(const std::string& file);
  void note_kept_row(std::string_view history);
  void add_record(int field, std::string_view body);
  void write_records();
  void begin_run();
  void add_metric_of(const std::string& name);
  void begin_row(int64_t step);
  void end_row();

  WandbOptions options_;
  TrackedRun run_{};
  std::filesystem::path run_directory_{};
  RecordFile file_;
  std::string history_{}, summary_{}, record_{}, records_{}, json_{};  // kept, so that log() allocates little
  int64_t number_ = 0;                                                 // of the last record
  int64_t row_ = -1;                                                   // "_step" of the last row
  double started_ = 0, seconds_before_ = 0;
  std::vector<Rule> rules_{};
  std::map<std::string, std::string> known_{};  // metrics that have a record, and what their summary shows
  std::map<std::string, Statistics> statistics_{};
};

}  // namespace lockstep
