// What a run tells while it goes: numbers by step, its settings, its result. Derive from Tracker to send them anywhere.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "lockstep/base/error.h"
#include "lockstep/tracking/histogram.h"
#include "lockstep/tracking/run_id.h"

namespace lockstep {

/// Values of one moment by name ("loss", "learning_rate", "eval_accuracy", ...).
using TrackedValues = std::map<std::string, double>;

/// A setting or a result by name. Text that is JSON stays text.
using TrackedSetting = std::variant<bool, int64_t, double, std::string>;
using TrackedSettings = std::map<std::string, TrackedSetting>;

/// Which run it is. Give the same to all trackers of a run.
struct TrackedRun {
  /// Letters, digits, '-' and '_'. A run that is resumed must have the id of its first part.
  std::string id = make_run_id();
  std::string name{};   ///< for people; empty: the id
  std::string group{};  ///< what shows several runs together, such as the ranks of a job; empty: none
  int rank = 0;
  int world_size = 1;
  /// Steps that a checkpoint holds. Records of later steps are cut off; log() goes on behind the earlier ones.
  /// Without it the run begins anew, and replaces what it has written under this id.
  std::optional<int64_t> resume_step{};
  /// How many of the records of resume_step itself stay: the first ones, which were there when the checkpoint
  /// was written. Default: all.
  std::optional<int64_t> resume_step_records{};
};

/// Which records a resumed run keeps. Ask for each in the order of the file.
class KeptRecords {
 public:
  explicit KeptRecords(const TrackedRun& run) : run_(run) {}
  /// Whether the next record, which is of this step, stays. Throws std::bad_optional_access without resume_step.
  bool keep(int64_t step) {
    if (step != run_.resume_step.value()) return step < *run_.resume_step;
    return !run_.resume_step_records || ++of_last_step_ <= *run_.resume_step_records;
  }

 private:
  const TrackedRun& run_;
  int64_t of_last_step_ = 0;
};

/// A tracker needs another program, such as Python, that is not there.
class NotInstalledError : public ValueError {
 public:
  using ValueError::ValueError;
};

/// `run` as one of several ranks that are tracked side by side: rank 3 of "r" is "r-rank3", in the group "r".
TrackedRun run_of_rank(TrackedRun run, int rank, int world_size);

/// One destination. start() and log() are enough for a tracker of your own:
///
///     class Printer : public lockstep::Tracker {
///      public:
///       std::string name() const override { return "printer"; }
///       void start(const lockstep::TrackedRun& run) override { std::cout << run.name << '\n'; }
///       void log(int64_t step, const lockstep::TrackedValues& values) override {
///         for (const auto& [name, value] : values) std::cout << step << ' ' << name << ' ' << value << '\n';
///       }
///     };
///
/// The order of calls is start, then any number of the others, then finish. One thread at a time. A tracker
/// throws what stops it; Trackers (trackers.h) turns that into a warning. The built-in ones throw ValueError
/// for a run id that is no file name, and FileError when they cannot write. Their log() is one write() into
/// the page cache: a crash of the program loses nothing, and the files can be read while the run goes.
class Tracker {
 public:
  virtual ~Tracker() = default;
  virtual std::string name() const = 0;  ///< for messages
  virtual void start(const TrackedRun& run) = 0;
  /// `step`: optimizer steps done. Several calls with one step are several records.
  virtual void log(int64_t step, const TrackedValues& values) = 0;
  virtual void log_text(int64_t /*step*/, const std::string& /*name*/, std::string_view /*text*/) {}
  virtual void log_histogram(int64_t /*step*/, const std::string& /*name*/, const Histogram& /*histogram*/) {}
  /// What the run was told. A second call adds and replaces.
  virtual void config(const TrackedSettings& /*settings*/) {}
  /// What came out of it. A second call adds and replaces.
  virtual void summary(const TrackedSettings& /*results*/) {}
  /// `exit_code`: what the program exits with; 0: the run did what it should. A run that ends without this call counts
  /// as crashed.
  virtual void finish(int /*exit_code*/ = 0) {}
};

}  // namespace lockstep
