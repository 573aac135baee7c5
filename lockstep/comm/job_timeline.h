// The timeline of a job, from init() to destroy().
#pragma once

#include <memory>

#include "lockstep/comm/process_group/impl.h"
#include "lockstep/job/launch_environment.h"

namespace lockstep {

/// With LOCKSTEP_TIMELINE set, on all ranks: begins to record and returns `group` with its operations in the
/// timeline. Otherwise `group`. Blocks until all ranks are there. Throws FileError where the file could not
/// be written.
std::shared_ptr<ProcessGroup::Impl> begin_timeline(std::shared_ptr<ProcessGroup::Impl> group,
                                                   const job::LaunchEnvironment& launch);
/// Ends it, and writes the file where this rank is the last one. Prints why that fails, where it does.
void end_timeline();

}  // namespace lockstep
