// A job on a list of hosts: this lockrun serves the rendezvous and starts the others.
#pragma once

#include <functional>
#include <string>

#include "launcher/cli/options.h"
#include "launcher/machines/hosts.h"
#include "launcher/process/signals.h"

namespace lockstep::launcher {

/// Runs this machine's part of the job.
using RunHere = std::function<int(const Options& options, Hosts& hosts)>;

/// Blocks until the job is over; `run_here` is called where this machine is among the hosts. Returns the exit
/// code. Throws Error when the hosts cannot be reached.
int run_on_hosts(const Options& options, Signals& signals, const RunHere& run_here);

/// A line for each of the hosts: its ranks, and what starts lockrun there, as one would type it. Begins with
/// '\n' and does not end with one.
std::string hosts_text(const NodeOptions& nodes);

}  // namespace lockstep::launcher
