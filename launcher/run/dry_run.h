// --dry-run: what would be started, and where.
#pragma once

#include <string>

#include "launcher/run/attempt.h"

namespace lockstep::launcher {

/// Several lines, as the job stands before its first attempt.
std::string dry_run_text(const Job& job, const Machine& machine);

}  // namespace lockstep::launcher
