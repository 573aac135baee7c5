// One start of all ranks, watched to its end.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/environment.h"
#include "launcher/listener.h"
#include "launcher/options.h"
#include "launcher/program.h"
#include "launcher/report.h"
#include "launcher/signals.h"

namespace lockstep::launcher {

/// What stays the same when ranks are restarted.
struct Job {
  const Options& options;
  Program program;
  std::vector<std::string> inherited_environment;
  JobEnvironment environment;
  const Listener& listener;
  std::string store_path;
  double started = 0;  ///< monotonic seconds
};

struct AttemptResult {
  std::vector<WorkerResult> workers;
  std::optional<int> interrupted_by;  ///< signal that lockrun received, before any rank failed
  std::string error;                  ///< lockrun's own failure, as one line; empty when there is none
  std::string report;                 ///< about the rank that failed first; empty when none did
};

/// Starts the workers and blocks until they, and all that they started, are gone. Throws Error when they
/// cannot be started; then none is left.
AttemptResult run_attempt(const Job& job, Signals& signals);

}  // namespace lockstep::launcher
