// Several trackers as one, which never end a training.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/tracking/tracker.h"

namespace lockstep {

/// Tells each of its trackers what it is told. One that throws is left out from then on, with a warning on
/// standard error; several that fail for the same reason, such as a full disk, get one warning together. So no
/// call throws, but start(), with ValueError if the run cannot be tracked as it is named and NotInstalledError if a
/// tracker needs what is not installed.
class Trackers : public Tracker {
 public:
  /// They are called in this order.
  explicit Trackers(std::vector<std::shared_ptr<Tracker>> trackers) : trackers_(std::move(trackers)) {}
  std::string name() const override { return "trackers"; }  ///< "trackers"
  /// Throws ValueError for an id that is no file name, NotInstalledError as a tracker does.
  void start(const TrackedRun& run) override;
  /// Calls each tracker's.
  void log(int64_t step, const TrackedValues& values) override;
  /// Calls each tracker's.
  void log_text(int64_t step, const std::string& name, std::string_view text) override;
  /// Calls each tracker's.
  void log_histogram(int64_t step, const std::string& name, const Histogram& histogram) override;
  /// Calls each tracker's.
  void config(const TrackedSettings& settings) override;
  /// Calls each tracker's.
  void summary(const TrackedSettings& results) override;
  /// Calls each tracker's.
  void finish(int exit_code = 0) override;
  /// Whether none is left.
  bool empty() const { return trackers_.empty(); }

 private:
  template <class Call>
  void for_each(Call call);
  void warn(const Tracker& tracker, const std::string& problem);

  std::vector<std::shared_ptr<Tracker>> trackers_;
  std::set<std::string> causes_{};  // of which there was a warning
};

}  // namespace lockstep
