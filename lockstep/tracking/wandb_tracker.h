// A run of Weights & Biases, through its own client.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/tracking/formats/record_file.h"
#include "lockstep/tracking/tracker.h"

namespace lockstep {

namespace detail {
class WandbFollower;
}

/// Where a run is written, and the arguments of wandb.init() under their names. The client's variables
/// (WANDB_PROJECT, WANDB_NAME, WANDB_DIR, ...) count before these.
struct WandbOptions {
  /// The tracker's file is `<directory>/wandb/<run id>.jsonl`; the client has a folder beside it.
  std::filesystem::path directory = ".";
  std::string project = "lockstep";    ///< the project of the run
  std::string entity{};                ///< user or team; empty: that of whoever is logged in
  std::string job_type{};              ///< such as "train"; empty: none
  std::string notes{};                 ///< a description for people; empty: none
  std::vector<std::string> tags{};     ///< to find the run by
  double start_timeout_seconds = 60;   ///< how long start() waits for Python to import wandb
  double finish_timeout_seconds = 60;  ///< how long finish() waits for the client to send the rest
  /// What a missing Python or package wandb is: false: NotInstalledError; true: Error, with which Trackers warns
  /// and goes on without this tracker.
  bool is_optional = false;
};

/// wandb.define_metric's arguments.
struct WandbMetric {
  std::string step_metric = "global_step";  ///< the x axis; empty: the number of the row
  std::string summary{};  ///< what the summary shows: min, max, mean, first, last or none; empty: the last
  bool hidden = false;    ///< true: no chart of its own
};

/// Every log() is one row of the history, with its step as "global_step", which is the x axis of all metrics.
/// "_step", which grows with every row, is the step too, or the next number where a row has that step already.
///
/// Each call adds a line to the tracker's file and never waits for the network. A Python process, PYTHON_EXEC or
/// python3 of PATH, follows the file and gives the lines to wandb's client: online, or offline with
/// WANDB_MODE=offline and where nobody is logged in. If the client fails, a warning says with which command to
/// send the file later. A resumed run is one run, with every step once.
class WandbTracker : public Tracker {
 public:
  /// Writes nothing before start().
  explicit WandbTracker(WandbOptions options = {});
  ~WandbTracker() override;
  std::string name() const override { return "wandb"; }  ///< "wandb"
  /// Begins the file, with the lines that TrackedRun::resume_step keeps, and starts Python. Blocks until that has
  /// imported wandb. Throws NotInstalledError without Python or wandb; another problem of it is a warning.
  void start(const TrackedRun& run) override;
  /// A row of the history; each value also becomes the summary's, as define_metric() says. Values named "step" and
  /// "time" are left out.
  void log(int64_t step, const TrackedValues& values) override;
  /// A row of the history with a text.
  void log_text(int64_t step, const std::string& name, std::string_view text) override;
  /// A row of the history with a wandb.Histogram. Of more than 512 bins, neighbors are put together.
  void log_histogram(int64_t step, const std::string& name, const Histogram& histogram) override;
  /// wandb.config: adds and replaces.
  void config(const TrackedSettings& settings) override;
  /// wandb.summary: adds and replaces.
  void summary(const TrackedSettings& results) override;
  /// The exit code, which Weights & Biases shows as finished (0) or failed. Blocks until the client has sent what
  /// is left, finish_timeout_seconds at most.
  void finish(int exit_code) override;

  /// How a metric is shown; a last '*' stands for all names that begin so. Of several that fit, the last one
  /// counts. Call it after start(). Throws ValueError for another `summary`.
  void define_metric(const std::string& name, const WandbMetric& metric = {});

  /// The tracker's file; empty before start().
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  std::string first_line(const TrackedRun& run, bool replaces) const;
  void follow();
  void append_line();
  void warn(const std::string& problem);

  WandbOptions options_;
  RecordFile file_;
  std::string line_{};  // kept, so that log() allocates little
  std::unique_ptr<detail::WandbFollower> follower_{};
};

}  // namespace lockstep
