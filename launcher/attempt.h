// One start of this machine's ranks, watched to its end.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/environment.h"
#include "launcher/listener.h"
#include "launcher/options.h"
#include "launcher/placement.h"
#include "launcher/program.h"
#include "launcher/report.h"
#include "launcher/signals.h"

namespace lockstep::launcher {

class Agent;

/// What stays the same when ranks are restarted, but for `environment`.
struct Job {
  const Options& options;
  Program program;
  std::vector<std::string> inherited_environment;
  JobEnvironment environment;
  const Listener& listener;
  std::string store_path;
  std::string scratch_directory;  ///< removed in the end; empty when logs are kept
  std::vector<CpuSet> cores;      ///< by local rank; empty: not bound
  Agent* agent = nullptr;         ///< the way to the job's other machines; none on one machine
  double started = 0;             ///< monotonic seconds
  int attempt = 0;                ///< starts so far
};

struct AttemptResult {
  std::vector<WorkerResult> workers;
  std::optional<int> interrupted_by;  ///< signal that lockrun received, before any rank failed
  bool ended_by_peers = false;        ///< another machine asked for the end before any rank here failed
  bool hung = false;                  ///< ended because of --hang-action end
  std::string error;                  ///< lockrun's own failure, as one line; empty when there is none
  std::string report;                 ///< about the rank that failed first; empty when none did
};

/// Starts the workers and blocks until they, and all that they started, are gone. Throws Error when they
/// cannot be started; then none is left.
AttemptResult run_attempt(const Job& job, Signals& signals);

}  // namespace lockstep::launcher
