#include "lockstep/tracking/trackers.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {

template <class Call>
void Trackers::for_each(Call call) {
  for (size_t t = 0; t < trackers_.size();) {
    try {
      call(*trackers_[t]);
      ++t;
    } catch (const NotInstalledError&) {
      throw;
    } catch (const std::exception& error) {
      warn(*trackers_[t], error.what());
      trackers_.erase(trackers_.begin() + static_cast<std::ptrdiff_t>(t));
    }
  }
}

// What stands behind the last colon of a FileError is the system's word for the cause.
void Trackers::warn(const Tracker& tracker, const std::string& problem) {
  const std::string cause = problem.substr(problem.rfind(": ") + 1);
  if (!causes_.insert(cause).second) return;
  log::warning(fmt::format(
      "tracking by {} ends: {}. The training goes on. Other trackers that fail for this reason end "
      "without a warning",
      tracker.name(), problem));
}

void Trackers::start(const TrackedRun& run) {
  check_run_id(run.id);
  for_each([&](Tracker& tracker) { tracker.start(run); });
}

void Trackers::log(int64_t step, const TrackedValues& values) {
  for_each([&](Tracker& tracker) { tracker.log(step, values); });
}

void Trackers::log_text(int64_t step, const std::string& name, std::string_view text) {
  for_each([&](Tracker& tracker) { tracker.log_text(step, name, text); });
}

void Trackers::log_histogram(int64_t step, const std::string& name, const Histogram& histogram) {
  for_each([&](Tracker& tracker) { tracker.log_histogram(step, name, histogram); });
}

void Trackers::config(const TrackedSettings& settings) {
  for_each([&](Tracker& tracker) { tracker.config(settings); });
}

void Trackers::summary(const TrackedSettings& results) {
  for_each([&](Tracker& tracker) { tracker.summary(results); });
}

void Trackers::finish(int exit_code) {
  for_each([&](Tracker& tracker) { tracker.finish(exit_code); });
}

}  // namespace lockstep
