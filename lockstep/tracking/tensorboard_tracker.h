// A run as TensorBoard shows it: `tensorboard --logdir DIRECTORY`.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/tracking/formats/record_file.h"
#include "lockstep/tracking/tracker.h"

namespace lockstep {

/// Writes one event file, "events.out.tfevents.<time>.<host>.<run id>", into `directory`: scalars (float, as
/// TensorBoard's own writers store them), texts, histograms, settings as hyperparameters, results as a text. A
/// resumed run goes on in its file; other files in `directory` are left alone. A TensorBoard that is open
/// meanwhile shows a resumed run after it is started again.
class TensorBoardTracker : public Tracker {
 public:
  /// The directory of this run alone: TensorBoard takes it for one run. start() makes it.
  explicit TensorBoardTracker(std::filesystem::path directory) : directory_(std::move(directory)) {}
  std::string name() const override { return "tensorboard"; }  ///< "tensorboard"
  /// Makes the event file; of a resumed run the records that TrackedRun::resume_step keeps stay.
  void start(const TrackedRun& run) override;
  /// A scalar for each value, as float. Does nothing without values.
  void log(int64_t step, const TrackedValues& values) override;
  /// A text, which TensorBoard shows as Markdown.
  void log_text(int64_t step, const std::string& name, std::string_view text) override;
  /// A histogram. Does nothing without counts.
  void log_histogram(int64_t step, const std::string& name, const Histogram& histogram) override;
  /// The hyperparameters. They are written with the next record, since TensorBoard shows only the first ones.
  void config(const TrackedSettings& settings) override;
  /// Results, which finish() writes as a table.
  void summary(const TrackedSettings& results) override;
  /// Writes what is left, and whether the run succeeded (exit code 0); closes the file.
  void finish(int exit_code) override;

 private:
  void write_event(int64_t step);
  void write_settings();

  std::filesystem::path directory_;
  RecordFile file_;
  TrackedRun run_{};
  TrackedSettings settings_{}, results_{};
  std::string session_start_{};  ///< the event of the run's first part, until its settings are given again
  bool has_settings_ = false;    ///< that are not written yet
  double started_ = 0;
  int64_t last_step_ = 0;
  std::string summary_{}, event_{}, record_{};  // kept, so that log() allocates nothing
};

}  // namespace lockstep
