// A run as a table: a row for every log(), a column for every name.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/tracking/formats/record_file.h"
#include "lockstep/tracking/tracker.h"

namespace lockstep {

/// Columns step, time (seconds since 1970), then names in the order of their first appearance; RFC 4180. A name
/// that appears later makes the file anew with one more column, empty in the rows before; so all rows have
/// as many fields as the header. Texts, histograms, settings and results are left out.
class CsvTracker : public Tracker {
 public:
  /// The file, such as "run/metrics.csv"; start() makes it and its folder.
  explicit CsvTracker(std::filesystem::path path) : path_(std::move(path)) {}
  std::string name() const override { return "csv"; }  ///< "csv"
  /// Replaces the file; of a resumed run the rows that TrackedRun::resume_step keeps stay.
  void start(const TrackedRun& run) override;
  /// Adds a row. Values named "step" and "time" are left out; what is not finite is nan, inf or -inf.
  void log(int64_t step, const TrackedValues& values) override;
  /// Closes the file. The exit code is not written.
  void finish(int exit_code) override;

 private:
  void widen();

  std::filesystem::path path_;
  RecordFile file_;
  std::string row_;
  std::vector<std::string> columns_{};  // behind step and time
};

}  // namespace lockstep
