// The directory that a job's guardian makes and removes, and those that killed guardians have left.
#pragma once

#include <string>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {

/// A new name in `parent` for the scratch directory of a job.
std::string scratch_name(const std::string& parent, const std::string& id);

/// The environment variable, "NAME=value", by which sweep_scratch() knows the processes of the job with the scratch
/// directory `path`.
std::string scratch_mark(const std::string& path);

/// Makes the directory `path` and locks it for as long as the result is open. Invalid, with errno, when that
/// is impossible.
UniqueFd make_scratch(const std::string& path);

/// Removes what jobs have left in `parent` whose lockrun and guardian were killed together, and kills
/// (SIGKILL) the processes of this user that are left of them.
void sweep_scratch(const std::string& parent);

}  // namespace lockstep::launcher
