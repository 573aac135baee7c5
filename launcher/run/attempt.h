// One start of this machine's ranks, watched to its end.
#pragma once

#include <string>
#include <vector>

#include "launcher/cli/options.h"
#include "launcher/process/placement.h"
#include "launcher/process/program.h"
#include "launcher/process/signals.h"
#include "launcher/run/attempt_result.h"
#include "lockstep/job/launch_environment.h"
#include "lockstep/job/listener.h"

namespace lockstep::launcher {

class Agent;
class EventLog;
class Hosts;

/// What stays the same when ranks are restarted, but for `environment` and `attempt`.
struct Job {
  const Options& options;
  Program program;
  std::vector<std::string> inherited_environment;
  job::LaunchEnvironment environment;  ///< of this machine's first rank
  const job::Listener& listener;
  std::string store_path;
  std::string directory{};          ///< of all attempts: error files, logs
  std::string scratch_directory{};  ///< made and removed by the guardian; `directory`, unless logs are kept
  std::vector<CpuSet> cores{};      ///< by local rank; empty: not bound
  Agent* agent = nullptr;           ///< the way to the job's other machines; none on one machine
  Hosts* hosts = nullptr;      ///< the lockruns that this one has started on other machines; none: no list
  EventLog* events = nullptr;  ///< never null where ranks are started
  double started = 0;          ///< monotonic seconds
  int attempt = 0;             ///< starts so far
  int replacements = 0;        ///< of single ranks, in the attempts before
  uint32_t epoch =
      0;  ///< its ranks take the places of those of a lost machine, as this one begins; 0: they do not
  std::string lost{};  ///< that machine, and how it was lost
};

/// Starts the workers and blocks until they, and all that they started, are gone. Throws Error when they
/// cannot be started; then none is left.
AttemptResult run_attempt(const Job& job, Signals& signals);

}  // namespace lockstep::launcher
